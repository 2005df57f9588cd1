// Keeps a page live: the part that changes arrives as server-sent events and is put in place, node by node, so that
// focus, scroll and selection stay where they are. While the tab is hidden, its stream is closed.
"use strict";

(() => {
  const live = document.getElementById("live");
  const pulse = document.getElementById("pulse");
  let stream = null;

  function tell(state, text) {
    pulse.dataset.state = state;
    if (pulse.textContent !== text) pulse.textContent = text;
  }

  function isAlike(old, made) {
    return old.nodeType === made.nodeType && old.nodeName === made.nodeName;
  }

  function morphAttributes(old, made) {
    for (const { name } of [...old.attributes]) {
      if (!made.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of made.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function morph(old, made) {
    if (!isAlike(old, made)) {
      old.replaceWith(made.cloneNode(true));
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== made.nodeValue) old.nodeValue = made.nodeValue;
    } else if (!old.isEqualNode(made)) {
      morphAttributes(old, made);
      morphChildren(old, made);
    }
  }

  function morphChildren(old, made) {
    const before = [...old.childNodes];
    const after = [...made.childNodes];
    after.forEach((node, at) => {
      if (at < before.length) morph(before[at], node);
      else old.append(node.cloneNode(true));
    });
    before.slice(after.length).forEach((node) => node.remove());
  }

  function show(event) {
    // Parsed as a document of its own, in which no script ever runs.
    const made = new DOMParser().parseFromString(`<body><div>${event.data}</div>`, "text/html");
    morphChildren(live, made.body.firstChild);
    tell("live", "live");
  }

  function open() {
    if (stream !== null) return;
    stream = new EventSource(location.pathname + location.search);
    stream.addEventListener("page", show);
    stream.onerror = () => tell("away", stream.readyState === EventSource.CLOSED ? "not live" : "connecting");
  }

  function close() {
    if (stream === null) return;
    stream.close();
    stream = null;
  }

  if (live === null || !live.hasAttribute("data-live")) return;
  const follow = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", follow);
  follow();
})();
