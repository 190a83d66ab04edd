// The tail: puts each change on top as it is told. No request while nobody looks or while it is paused; what happened meanwhile comes after.
(() => {
  "use strict";
  const MOST = 500, AGAIN_MS = 2000;
  const table = document.getElementById("tail"), rows = table.tBodies[0];
  const said = document.getElementById("tail-state"), stale = document.getElementById("stale"), pause = document.getElementById("pause");
  const hidden = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
  let since = table.dataset.since, source = null, timer = 0, isPaused = false, waiting = [];

  const shown = (text) => String(text).replace(hidden, (found) => `\\u{${found.charCodeAt(0).toString(16)}}`);
  const part = (name) => {
    const text = name.replaceAll("!", "!0").replaceAll("/", "!1");
    return encodeURIComponent((text.startsWith(".") ? `!2${text.slice(1)}` : text).toWellFormed());
  };
  const cell = (row, text) => { const made = row.insertCell(); made.textContent = shown(text); return made; };
  const link = (row, place, name, text, isCode) => {
    const made = row.insertCell();
    if (!name) return;
    const a = made.appendChild(document.createElement("a"));
    a.href = `${place}/${part(name)}`;
    (isCode ? a.appendChild(document.createElement("code")) : a).textContent = shown(text);
  };
  const put = (change) => {
    const row = rows.insertRow(0);
    row.className = "change";
    cell(row, change.at_ms ? new Date(change.at_ms).toISOString().slice(0, 19).replace("T", " ") : "-");
    cell(row, change.what);
    link(row, table.dataset.queues, change.queue, change.queue.replace(/^event\./, ""), false);
    link(row, table.dataset.jobs, change.job_id, change.job_id, true);
    const state = row.insertCell();
    if (change.state) {
      const span = state.appendChild(document.createElement("span"));
      span.className = `state ${change.state}`;
      span.textContent = change.state;
    }
    cell(row, `${change.attempt ? `attempt ${change.attempt} ` : ""}${change.note}`).className = "text";
  };
  // At most once a frame, and only the rows that stay.
  const draw = () => {
    const newest = waiting.slice(-MOST);
    waiting = [];
    newest.forEach(put);
    while (rows.rows.length > MOST) rows.deleteRow(-1);
  };
  const stopTimer = () => { clearTimeout(timer); timer = 0; };
  const close = () => { stopTimer(); if (source) source.close(); source = null; };
  const show = (text, isStale) => { said.textContent = text; stale.hidden = !isStale; };
  const address = () => {
    const url = new URL(table.dataset.stream, location.href);
    url.searchParams.set("since", since);
    if (table.dataset.event) url.searchParams.set("event", table.dataset.event);
    return url;
  };
  const open = () => {
    close();
    if (isPaused || document.hidden) return;
    source = new EventSource(address());
    source.addEventListener("open", () => { stopTimer(); show("It is told as it happens.", false); });
    source.addEventListener("slice", (event) => { since = event.lastEventId; });
    source.addEventListener("change", (event) => {
      since = event.lastEventId;
      if (!waiting.length) requestAnimationFrame(draw);
      waiting.push(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CONNECTING) {
        // The end of a slice. If nobody answers by then, it is more than that.
        timer ||= setTimeout(() => { if (source && source.readyState !== EventSource.OPEN) show("It is not told now.", true); }, AGAIN_MS);
        return;
      }
      ask();
    });
  };
  // It was refused: the answer says why.
  const ask = async () => {
    close();
    timer = setTimeout(open, AGAIN_MS);
    const answer = await fetch(address(), { method: "HEAD" }).catch(() => null);
    if (answer && answer.ok) return;
    if (answer && answer.status === 401) location.reload();
    const told = answer && answer.status === 429 ? "Too many tails are open; it goes on when one is closed." : "It is not told now.";
    show(told, !answer || answer.status >= 500);
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause updates";
    if (isPaused) { close(); show("It is paused.", false); } else open();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
})();
