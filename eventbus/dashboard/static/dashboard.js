// What htmx does not do: no request while nobody looks or while updates are paused, and a banner while the server does not answer.
(() => {
  "use strict";
  const pause = document.getElementById("pause");
  const stale = document.getElementById("stale");
  let isPaused = false;
  let isBehind = false; // an answer was dropped, so the next one has to be whole

  const show = (isStale) => {
    if (stale) stale.hidden = !isStale;
    document.body.classList.toggle("is-stale", isStale);
  };

  if (pause && document.getElementById("live")) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      pause.textContent = isPaused ? "Go on" : "Pause updates";
    });
  }

  document.addEventListener("htmx:config:request", (event) => {
    if (isPaused || document.hidden) event.preventDefault();
    if (isBehind) delete event.detail.ctx.request.headers["HX-PTag"];
  });
  document.addEventListener("htmx:after:request", (event) => {
    const status = event.detail.ctx.response.status;
    if (status === 401) location.reload();
    show(status >= 500);
    isBehind = isPaused || (isBehind && status >= 400);
    if (isPaused || status >= 400) event.preventDefault(); // what stands here stays; after an error it is marked as old
  });
  document.addEventListener("htmx:error", () => show(true));
})();
