"use strict";
// Follows a run that trains: asks the server for what is new, and puts it in the place of what is old.
(() => {
  const { data: { live, words }, drawAll, copyButtons } = window.trimtab;
  const token = new URLSearchParams(location.search).get("token");
  const box = document.getElementById("live");
  const LONGEST = 30000;
  let shown = live, missed = 0, held = false, due = false, waiting = null;

  // ---- one tree made like another: what is alike stays, with its focus, its folds and its place under the reader's eyes ----

  const drawnHere = (node) => node.nodeType === 1 && node.matches(".uplot, .key, .copy");
  const kept = new Set(["open", "hidden", "data-drawn"]); // these are the reader's, or page.js's
  const keyOf = (node) => (node.nodeType === 1 ? `${node.nodeName} ${node.id || node.dataset.key || node.dataset.chart || node.className}` : `${node.nodeType}`);

  function become(old, fresh) {
    if (old.nodeType !== 1) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.matches(".readout, [aria-live]")) return;
    for (const { name, value } of fresh.attributes) if (!kept.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!kept.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    if (!old.matches(".plot")) becomeChildren(old, fresh);
  }

  function becomeChildren(old, fresh) {
    const there = new Map();
    for (const node of old.childNodes) {
      if (drawnHere(node)) continue;
      const key = keyOf(node);
      if (!there.has(key)) there.set(key, []);
      there.get(key).push(node);
    }
    const wanted = [...fresh.childNodes], found = wanted.map((node) => (there.get(keyOf(node)) || []).shift());
    for (const left of there.values()) for (const node of left) node.remove();
    let place = old.firstChild;
    wanted.forEach((node, i) => {
      while (place && drawnHere(place)) place = place.nextSibling;
      if (!found[i]) old.insertBefore(node, place);
      else if (found[i] === place) place = place.nextSibling;
      else old.insertBefore(found[i], place);
      if (found[i]) become(found[i], node);
    });
  }

  async function renew(html, charts) {
    const fresh = new DOMParser().parseFromString(html, "text/html"), focus = document.activeElement;
    for (const part of [".run", "nav"]) become(document.querySelector(`header ${part}`), fresh.querySelector(`header ${part}`));
    const name = fresh.querySelector(".run").textContent;
    if (name) document.title = `${name} · trimtab`;
    becomeChildren(document.getElementById("main"), fresh.querySelector("main"));
    if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
    copyButtons(document);
    await drawAll(charts);
  }

  // ---- asking ----

  function tell(state, text, far) {
    box.dataset.state = state;
    for (const [name, words] of [["[role=status]", text], [".far", far]]) {
      const line = box.querySelector(name);
      if (words != null && line.textContent !== words) line.textContent = words;
    }
  }

  async function ask() {
    waiting = null;
    if (document.hidden || held) { // nobody looks, or a hand is on a chart
      due = true;
      return;
    }
    let answer, news = null;
    try {
      answer = await fetch(`/state?since=${encodeURIComponent(shown.version)}`, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", signal: AbortSignal.timeout(LONGEST) });
      if (answer.status === 200) news = await answer.json();
    } catch { // there is no server, or it ended while it answered
      answer = { ok: false };
    }
    if (answer.status === 403) return tell("lost", words.refused);
    if (answer.ok) {
      if (news && news.html != null) await renew(news.html, news.charts);
      if (news) shown = news.live;
      if (news || missed) tell(shown.state, shown.text, shown.far);
      missed = 0;
    } else {
      missed += 1;
      if (missed > 1) tell("lost", words.lost); // once may be chance
    }
    if (shown.again != null) waiting = setTimeout(ask, missed ? Math.min(500 * 2 ** missed, LONGEST) : shown.again);
  }

  function goOn() {
    if (!due || document.hidden || held) return;
    due = false;
    ask();
  }

  const hold = (event) => { held = Boolean(event.target.closest && event.target.closest(".plot")); };
  addEventListener("pointerdown", hold, true);
  for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, () => { held = false; goOn(); }, true);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    if (waiting) { // at once for one who has come back
      clearTimeout(waiting);
      waiting = null;
      due = true;
    }
    goOn();
  });

  if (shown.again != null) waiting = setTimeout(ask, shown.again);
})();
