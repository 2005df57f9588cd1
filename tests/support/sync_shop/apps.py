from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "sync_shop"
    default_auto_field = "django.db.models.BigAutoField"
