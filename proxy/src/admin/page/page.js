"use strict";
// Puts the parts of the page in place as the proxy sends them; it renders and escapes them, as it does for a browser without scripts.
(() => {
  const live = document.getElementById("live");
  const form = document.querySelector("form");
  let source;

  const say = (text, lost) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("lost", lost);
  };

  const watch = () => {
    if (source) source.close();
    source = new EventSource("events" + location.search);
    source.onopen = () => say("Live", false);
    source.onmessage = (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) {
        const part = document.getElementById(id);
        // A link that has the focus keeps it.
        const focus = part.contains(document.activeElement) ? document.activeElement.textContent : null;
        part.innerHTML = html;
        if (focus !== null) {
          for (const link of part.querySelectorAll("a")) {
            if (link.textContent === focus) link.focus();
          }
        }
      }
      say("Live", false);
    };
    source.onerror = () => say("The connection to the proxy is lost; trying again. What is shown is old.", true);
  };

  // The search is the proxy's; the address keeps it, so that it can be sent to somebody.
  let typing;
  const search = () => {
    const query = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...query]) if (value === "" || value === "all") query.delete(name);
    const text = query.toString();
    history.replaceState(null, "", text ? "?" + text : location.pathname);
    watch();
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 200); });
  addEventListener("pagehide", () => source && source.close());
  watch();
})();
