// Browsers start no worker out of a file. So that search works when the site is opened from a disk, a hidden frame
// stands in for the worker there; served over HTTP nothing changes.
(() => {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = (this.inner = this.frame.contentWindow);
      inner.postMessage = (data) => this.tell(new MessageEvent("message", { data }));
      this.ready = new Promise((loaded, failed) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = loaded;
        script.onerror = failed;
        inner.document.head.append(script);
      });
    }

    tell(event) {
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.Worker = FrameWorker;
})();
