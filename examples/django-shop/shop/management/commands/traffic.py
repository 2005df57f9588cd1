"""`python manage.py traffic`: random changes of every kind."""

from __future__ import annotations

import random
from collections import Counter
from textwrap import fill
from typing import Any

from django.core.management.base import BaseCommand

from shop.models import Tag
from shop.traffic import make_change, open_shop


class Command(BaseCommand):
    help = "Change rows of the shop at random, in every way that Django knows."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--changes", type=int, default=1000)
        parser.add_argument("--seed", type=int, default=7)

    def handle(self, *_arguments: Any, **options: Any) -> None:
        rng = random.Random(options["seed"])
        if not Tag.objects.exists():
            open_shop(rng)
        made: Counter[str] = Counter()
        for number in range(1, options["changes"] + 1):
            made[make_change(rng)] += 1
            if number % max(1, options["changes"] // 4) == 0:
                self.stdout.write(f"{number:,} of {options['changes']:,} changes")
                self.stdout.flush()
        self.stdout.write(fill(", ".join(f"{kind}={count}" for kind, count in sorted(made.items())), 80))
