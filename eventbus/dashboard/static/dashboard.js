// What htmx does not do: no request while nobody looks or while updates are paused, and a banner while the server does not answer.
(() => {
  "use strict";
  const pause = document.getElementById("pause");
  const stale = document.getElementById("stale");
  let isPaused = false;

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
  });
  document.addEventListener("htmx:before:response", (event) => {
    if (!isPaused) return;
    event.preventDefault(); // it was asked for before the pause
    event.detail.ctx.response.raw.text().catch(() => {}); // an answer that nobody reads would hold its connection
  });
  document.addEventListener("htmx:after:request", (event) => {
    const status = event.detail.ctx.response.status;
    if (status === 401) location.reload();
    show(status >= 500);
    if (status >= 400) event.preventDefault(); // what stands here stays, and is marked as old
  });
  document.addEventListener("htmx:error", () => show(true));
})();
