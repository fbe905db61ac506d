"use strict";
// Draws the charts of the page with uPlot: lines as it does, heat maps as a picture between its axes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"];
  const UNSEEN = 0, ZERO = 1, NONFINITE = 2, FIRST = 3, LAST = 65535; // as in packing.py
  const drawn = new Map(); // figure -> what draws it again

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  function show(value) {
    if (value == null || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en");
    if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(3)));
    return value.toExponential(2).replace("e+", "e");
  }

  function tick(value) {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
    return String(Number(value.toPrecision(6)));
  }

  function shorten(name, most) { // a class behind the name goes first, then the name's beginning
    const kept = name.length > most ? name.replace(/^((?:▸ )?\S+) .*$/, "$1") : name;
    return kept.length > most ? `…${kept.slice(1 - most)}` : kept;
  }

  // ---- axes ----

  function powers(low, high, room) {
    // Powers of ten between two of them, so many as there is room for; their halves and fifths where there are few.
    const from = Math.floor(Math.log10(low) + 1e-9), to = Math.ceil(Math.log10(high) - 1e-9);
    const every = Math.max(1, Math.ceil((to - from) / Math.max(room / 28, 1)));
    const marks = [];
    for (let power = Math.ceil(from / every) * every; power <= to; power += every) {
      for (const factor of to - from <= 2 ? [1, 2, 5] : [1]) {
        const mark = Number(`${factor}e${power}`);
        if (mark >= low * 0.999 && mark <= high * 1.001) marks.push(mark);
      }
    }
    return marks;
  }

  function logRange(low, high) {
    if (!(low > 0) || !(high > 0)) return [0.1, 10];
    const missing = Math.max(2 - Math.log10(high / low), 0) / 2 + 0.08; // two decades at least: what is flat looks flat
    return [low / 10 ** missing, high * 10 ** missing];
  }

  function linearRange(low, high) {
    if (low == null || high == null) return [0, 1];
    const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  function axis(more) {
    return { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 5 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", ...more };
  }

  function everySo(count, most) {
    const least = Math.max(1, count / Math.max(most, 1)), decade = 10 ** Math.floor(Math.log10(least));
    const every = [1, 2, 5, 10].map((factor) => factor * decade).find((step) => step >= least - 1e-9);
    return (u, i, low, high) => {
      const marks = [];
      for (let mark = Math.ceil(Math.max(low, 0) / every) * every; mark <= Math.min(high, count - 1); mark += every) marks.push(mark);
      return marks;
    };
  }

  // ---- line charts ----

  function spread(chart) {
    // In a chart of two runs, a curve has numbers at its own run's places: what lies between them is no gap.
    for (const curve of chart.curves.filter((one) => one.at)) {
      for (const part of ["y", "low", "high"].filter((name) => curve[name])) {
        const wide = Array(chart.x.length).fill(undefined);
        curve.at.forEach((place, i) => { wide[place] = curve[part][i]; });
        curve[part] = wide;
      }
      delete curve.at;
    }
  }

  // Two charts side by side begin and end at the same steps; a stretch that is looked at more closely is another matter.
  const wideTo = (chart) => (u, low, high) => (low == null || (low === chart.x[0] && high === chart.x[chart.x.length - 1]) ? chart.xRange : [low, high]);

  function lines(chart, plot, width) {
    spread(chart);
    const columns = [chart.x], bands = [];
    const named = chart.names.length > 0;
    const series = [{ label: named ? "layer" : "step", value: (u, x) => (x == null ? "–" : named ? chart.names[x - 1] : show(x)) }];
    const few = chart.x.length <= 60;
    const limited = (y) => (chart.log ? y.map((v) => (v > 0 || v === undefined ? v : null)) : y);
    let solid = 0;
    let hollow = false;
    chart.curves.forEach((curve) => {
      const limit = curve.look === "limit", dots = curve.look === "points";
      const stroke = limit ? colour("muted") : colour(`c${solid % 6}`);
      if (curve.low) {
        columns.push(limited(curve.high), limited(curve.low));
        bands.push({ series: [columns.length - 2, columns.length - 1], fill: `${stroke}33` });
        for (const edge of ["high", "low"]) series.push({ label: `${curve.name} ${edge}`, class: "band", stroke: `${stroke}55`, width: 0.5, points: { show: false } });
      }
      columns.push(limited(curve.y));
      if (dots) hollow = !hollow;
      series.push({
        label: curve.name,
        stroke,
        width: dots ? 0 : limit ? 1.25 : 1.75,
        dash: limit ? [6, 4] : !dots && solid > 0 ? [10, 4 + solid] : undefined,
        points: { show: dots || (few && !limit), size: dots ? 8 : 4, stroke, fill: dots && hollow ? colour("bg") : stroke, width: dots ? 2 : 1 },
        ...(dots ? { paths: () => null } : {}),
        value: (u, y) => show(y),
      });
      if (!limit) solid += 1;
    });
    const wide = width > 480;
    const rotated = named && chart.x.length <= Math.floor(width / 17);
    const most = wide ? 22 : 14;
    const longest = Math.max(0, ...chart.names.map((name) => shorten(name, most).length));
    const range = (u, low, high) => [Math.max(low, 0.5), Math.min(high, chart.x.length + 0.5)];
    const rest = (u) => { // without a cursor the legend tells the last numbers
      if (u.legend.idx == null) u.setLegend({ idx: chart.x.length - 1 }, false);
    };
    const only = chart.x.length === 1 ? [chart.x[0] - 1, chart.x[0] + 1] : null;
    return new uPlot({
      width,
      height: 260 + (rotated ? longest * 3.4 : 0),
      scales: {
        x: { time: false, ...(named ? { auto: true, range: (u, low, high) => (low == null ? [0.5, 1.5] : low === 1 && high === chart.x.length ? [0.5, high + 0.5] : range(u, low, high)) } : chart.xRange ? { range: wideTo(chart) } : only ? { range: only } : {}) },
        y: { distr: chart.log ? 3 : 1, range: (u, low, high) => (chart.log ? logRange : linearRange)(...(chart.yRange || [low, high])) },
      },
      axes: [
        axis({
          label: chart.xLabel, labelSize: 18, gap: 3,
          grid: { show: false },
          ...(rotated
            ? { splits: everySo(chart.x.length + 1, chart.x.length + 1), values: (u, marks) => marks.map((mark) => (mark >= 1 && chart.names[mark - 1] != null ? shorten(chart.names[mark - 1], most) : "")), rotate: -55, size: 26 + longest * 5.6 }
            : named ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], values: (u, marks) => marks.map((mark) => (Number.isInteger(mark) ? mark : "")), size: 34 }
            : { values: (u, marks) => marks.map((mark) => (Number.isInteger(mark) ? mark.toLocaleString("en") : "")), size: 34 }),
        }),
        axis({
          size: 58, gap: 4,
          ...(chart.log ? { incrs: [1e300], splits: (u, i, low, high) => powers(low, high, u.bbox ? u.bbox.height / devicePixelRatio : 200), filter: (u, marks) => marks } : {}),
          values: (u, marks) => marks.map(tick),
        }),
      ],
      series,
      bands,
      padding: [12, rotated ? 30 : 12, 0, 0],
      legend: { show: true, live: true, markers: { width: 2, dash: (u, i) => (series[i].dash ? "dashed" : "solid") } },
      hooks: { ready: [rest], setLegend: [rest] },
      cursor: { points: { size: 7 }, drag: { x: true, y: false }, ...(named ? {} : { sync: { key: "steps" } }) },
    }, columns, plot);
  }

  // ---- heat maps ----

  async function unpack(chart) {
    if (chart.codes) return chart.codes;
    const bytes = Uint8Array.from(atob(chart.cells), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const n = chart.columns.length, size = n * chart.rows.length;
    const codes = new Uint16Array(size);
    for (let i = 0; i < size; i++) {
      const step = (planes[i] << 8) | planes[size + i];
      codes[i] = i % n ? (codes[i - 1] + step) & 65535 : step;
    }
    chart.codes = codes;
    return codes;
  }

  const rgb = (hex) => [0, 2, 4].map((i) => parseInt(hex.replace("#", "").slice(i, i + 2), 16));

  function palette() {
    const ends = VIRIDIS.map(rgb);
    const table = new Uint32Array(LAST + 1);
    const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    for (let code = FIRST; code <= LAST; code++) {
      const place = ((code - FIRST) / (LAST - FIRST)) * (ends.length - 1);
      const i = Math.min(Math.floor(place), ends.length - 2), part = place - i;
      table[code] = pack(ends[i].map((end, k) => Math.round(end + (ends[i + 1][k] - end) * part)));
    }
    table[UNSEEN] = 0;
    table[ZERO] = pack(rgb(colour("zero")));
    table[NONFINITE] = pack(rgb(colour("broken")));
    return table;
  }

  function decoded(chart, code) {
    if (code === UNSEEN) return "not seen";
    if (code === ZERO) return "0";
    if (code === NONFINITE) return "not finite";
    const level = chart.low + ((code - FIRST) / (LAST - FIRST)) * (chart.high - chart.low);
    return show(chart.log ? 10 ** level : level);
  }

  function paint(u, chart, codes, table, sheet) {
    // The cells in view, at most one to a pixel across: of several the largest is drawn, or the one that is not finite.
    const n = chart.columns.length, rows = chart.rows.length;
    const from = clamp(Math.floor(u.scales.x.min + 0.5), 0, n - 1), to = clamp(Math.ceil(u.scales.x.max + 0.5), from + 1, n);
    const top = clamp(Math.floor(u.scales.y.min + 0.5), 0, rows - 1), end = clamp(Math.ceil(u.scales.y.max + 0.5), top + 1, rows);
    const across = Math.max(1, Math.min(to - from, Math.floor(u.bbox.width)));
    sheet.width = across;
    sheet.height = end - top;
    const brush = sheet.getContext("2d"), image = brush.createImageData(across, end - top);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = top; row < end; row++) {
      for (let j = 0; j < across; j++) {
        let code = 0;
        const last = from + Math.max(Math.floor(((j + 1) * (to - from)) / across), Math.floor((j * (to - from)) / across) + 1);
        for (let k = from + Math.floor((j * (to - from)) / across); k < last; k++) {
          const here = codes[row * n + k];
          if (here === NONFINITE) { code = here; break; }
          if (here > code) code = here;
        }
        pixels[(row - top) * across + j] = table[code];
      }
    }
    brush.putImageData(image, 0, 0);
    const { left, top: up, width, height } = u.bbox;
    const x0 = u.valToPos(from - 0.5, "x", true), x1 = u.valToPos(to - 0.5, "x", true);
    const y0 = u.valToPos(top - 0.5, "y", true), y1 = u.valToPos(end - 0.5, "y", true);
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(left, up, width, height);
    u.ctx.clip();
    u.ctx.imageSmoothingEnabled = false;
    u.ctx.drawImage(sheet, x0, Math.min(y0, y1), x1 - x0, Math.abs(y1 - y0));
    u.ctx.restore();
  }

  function heat(chart, plot, width, codes, tell) {
    const n = chart.columns.length, rows = chart.rows.length;
    const wide = width > 520;
    const most = wide ? 30 : 13, longest = Math.max(1, Math.min(chart.longest || 0, most), ...chart.rows.map((row) => shorten(row, most).length));
    const inner = clamp(rows * (rows > 60 ? 3 : 14), 70, 640);
    const side = 14 + longest * 6.6;
    const table = palette(), sheet = document.createElement("canvas");
    const within = (count) => (u, low, high) => (low == null ? [-0.5, count - 0.5] : [clamp(low, -0.5, count - 1), clamp(high, 0, count - 0.5)]);
    return new uPlot({
      width,
      height: inner + 62,
      padding: [6, 10, 0, 0],
      scales: { x: { time: false, range: within(n) }, y: { dir: -1, range: within(rows) } },
      axes: [
        axis({ label: chart.xLabel, labelSize: 18, size: 32, gap: 3, grid: { show: false }, splits: everySo(n, Math.floor((width - side) / 64)), values: (u, marks) => marks.map((mark) => (chart.columns[mark] == null ? "" : chart.columns[mark].toLocaleString("en"))) }),
        axis({ size: side, gap: 4, grid: { show: false }, splits: everySo(rows, Math.floor(inner / 13)), values: (u, marks) => marks.map((mark) => (chart.rows[mark] == null ? "" : shorten(chart.rows[mark], most))), font: "11px ui-monospace, Consolas, monospace" }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      legend: { show: false },
      cursor: { drag: { x: true, y: true, uni: 12 }, points: { show: false }, move: (u, left, top) => [left, top] },
      hooks: {
        draw: [(u) => paint(u, chart, codes, table, sheet)],
        setCursor: [(u) => {
          const { left, top } = u.cursor;
          if (left == null || left < 0) return tell("");
          const column = clamp(Math.round(u.posToVal(left, "x")), 0, n - 1), row = clamp(Math.round(u.posToVal(top, "y")), 0, rows - 1);
          tell(`${chart.rows[row]} · step ${show(chart.columns[column])} · ${chart.unit} ${decoded(chart, codes[row * n + column])}`);
        }],
      },
    }, [n > 1 ? [-0.5, n - 0.5] : [-0.5, 0.5], [-0.5, rows - 0.5]], plot);
  }

  function key(chart, codes, plot) {
    // The colour scale in words: both ends, and what has a colour of its own.
    const box = document.createElement("p");
    box.className = "key";
    const bar = document.createElement("canvas");
    bar.width = 256;
    bar.height = 1;
    const brush = bar.getContext("2d"), table = palette(), image = brush.createImageData(256, 1), pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < 256; i++) pixels[i] = table[FIRST + Math.round((i / 255) * (LAST - FIRST))];
    brush.putImageData(image, 0, 0);
    const add = (text, swatch) => {
      const part = document.createElement("span");
      if (swatch) {
        const chip = document.createElement("span");
        chip.className = `swatch ${swatch}`;
        part.append(chip, " ");
      }
      part.append(text);
      box.append(part);
    };
    add(decoded(chart, FIRST));
    box.append(bar);
    add(decoded(chart, LAST));
    add(chart.unit + (chart.log ? ", logarithmic" : ""));
    if (codes.includes(ZERO)) add("exactly 0", "zero");
    if (codes.includes(NONFINITE)) add("not finite", "broken");
    if (codes.includes(UNSEEN)) add("not seen", "unseen");
    plot.after(box);
    return box;
  }

  // ---- keyboard ----

  function steer(u, chart, figure, at) {
    // Arrow keys move the cursor from number to number and say it; Home and End go to the ends; Escape shows all again.
    const live = figure.querySelector("[aria-live]");
    const isHeat = Boolean(chart.columns);
    const n = isHeat ? chart.columns.length : chart.x.length, rows = isHeat ? chart.rows.length : 1;
    return (event) => {
      const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-n, 0], End: [n, 0], PageDown: [Math.ceil(n / 10), 0], PageUp: [-Math.ceil(n / 10), 0] };
      if (event.key === "Escape") {
        u.setData(u.data);
        return;
      }
      const move = moves[event.key];
      if (!move || event.ctrlKey || event.metaKey || event.altKey || (!isHeat && move[1])) return;
      event.preventDefault();
      at.column = clamp(at.column + move[0], 0, n - 1);
      at.row = clamp(at.row + move[1], 0, rows - 1);
      const x = isHeat ? at.column : chart.x[at.column];
      u.setCursor({ left: u.valToPos(x, "x"), top: isHeat ? u.valToPos(at.row, "y") : u.over.clientHeight / 2 });
      live.textContent = isHeat ? figure.querySelector(".readout").textContent : spoken(chart, at.column);
    };
  }

  function spoken(chart, i) {
    const where = chart.names.length ? chart.names[i] : `step ${show(chart.x[i])}`;
    return `${where}: ${chart.curves.map((curve) => `${curve.name} ${show(curve.y[i])}`).join(", ")}`;
  }

  // ---- the page ----

  async function draw(figure, chart) {
    const plot = figure.querySelector(".plot"), readout = figure.querySelector(".readout");
    const isHeat = Boolean(chart.columns);
    const codes = isHeat ? await unpack(chart) : null;
    const before = drawn.get(figure), kept = before && before.kept();
    plot.style.minHeight = `${plot.clientHeight}px`; // nothing below moves while there is no chart
    if (before) before.remove();
    if (plot.classList.replace("failed", "plot")) plot.textContent = "";
    const width = Math.max(plot.clientWidth, 240);
    const u = isHeat ? heat(chart, plot, width, codes, (text) => { readout.textContent = text || "\u00a0"; }) : lines(chart, plot, width);
    if (!isHeat) readout.hidden = true;
    const legend = isHeat ? key(chart, codes, plot) : null;
    const at = before ? before.at : { column: 0, row: 0 };
    const onKey = steer(u, chart, figure, at);
    plot.addEventListener("keydown", onKey);
    drawn.set(figure, {
      width,
      chart,
      at,
      kept: () => seen(u, chart, plot),
      remove() {
        plot.removeEventListener("keydown", onKey);
        if (legend) legend.remove();
        u.destroy();
      },
    });
    if (kept) restore(u, chart, kept);
    plot.style.minHeight = "";
    figure.dataset.drawn = "yes";
  }

  // ---- what a chart that is drawn again keeps of what its reader has set ----

  const indexOf = (steps, step) => { // where a step stands among those of a heat map, also between two of them
    const after = steps.findIndex((one) => one >= step);
    if (after < 1) return after < 0 ? steps.length - 0.5 : -0.5;
    return after - (steps[after] - step) / (steps[after] - steps[after - 1]);
  };

  function stepAt(steps, index) {
    const low = clamp(Math.floor(index), 0, steps.length - 1), high = Math.min(low + 1, steps.length - 1);
    return steps[low] + (steps[high] - steps[low]) * clamp(index - low, 0, 1);
  }

  function seen(u, chart, plot) {
    const { x, y } = u.scales, { left, top } = u.cursor, steps = chart.columns;
    const first = steps ? -0.5 : chart.x[0], last = steps ? steps.length - 0.5 : chart.x[chart.x.length - 1];
    const out = (value) => (steps ? stepAt(steps, value) : value);
    return {
      x: x.min > first || x.max < last ? [x.min > first ? out(x.min) : null, x.max < last ? out(x.max) : null] : null,
      y: steps && (y.min > -0.5 || y.max < chart.rows.length - 0.5) ? [y.min, y.max] : null,
      hidden: u.series.filter((one) => !one.show).map((one) => one.label),
      cursor: left >= 0 ? { left, top, hover: plot.matches(":hover"), x: out(u.posToVal(left, "x")), y: u.posToVal(top, "y") } : null,
    };
  }

  function restore(u, chart, kept) {
    const steps = chart.columns, into = (value) => (steps ? indexOf(steps, value) : value);
    u.batch(() => {
      if (kept.x) u.setScale("x", { min: kept.x[0] == null ? (steps ? -0.5 : chart.x[0]) : into(kept.x[0]), max: kept.x[1] == null ? (steps ? steps.length - 0.5 : chart.x[chart.x.length - 1]) : into(kept.x[1]) });
      if (kept.y) u.setScale("y", { min: kept.y[0], max: kept.y[1] });
      u.series.forEach((one, i) => { if (i && kept.hidden.includes(one.label)) u.setSeries(i, { show: false }); });
    });
    if (!kept.cursor) return;
    const { left, top, hover, x, y } = kept.cursor; // under a mouse it stays where it is, else at its number
    requestAnimationFrame(() => u.setCursor(hover ? { left, top } : { left: u.valToPos(into(x), "x"), top: steps ? u.valToPos(y, "y") : top }, false));
  }

  async function drawAll(charts) {
    for (const [figure, one] of drawn) {
      if (!figure.isConnected && drawn.delete(figure)) one.remove();
    }
    const byKey = new Map(charts.map((chart) => [chart.key, chart]));
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const chart = byKey.get(figure.dataset.chart);
      if (!chart) continue;
      try {
        await draw(figure, chart);
      } catch (error) {
        console.error(error);
        const plot = figure.querySelector(".plot");
        plot.classList.add("failed");
        plot.textContent = window.DecompressionStream ? "This chart could not be drawn." : "This browser is too old to draw this chart (it lacks DecompressionStream): open the page in a newer one.";
      }
    }
  }

  const again = () => drawAll([...drawn.values()].map((one) => one.chart));

  function copyButtons(root) {
    if (!navigator.clipboard) return;
    for (const box of root.querySelectorAll(".code:not(:has(.copy))")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      box.append(button);
    }
  }

  let waiting = 0;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const [figure, one] of drawn) {
        if (Math.abs(figure.querySelector(".plot").clientWidth - one.width) > 2) draw(figure, one.chart);
      }
    }, 120);
  }).observe(document.getElementById("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  const folded = [];
  addEventListener("beforeprint", () => { // on paper nothing unfolds, and paper is white
    document.documentElement.classList.add("printing");
    for (const details of document.querySelectorAll("details.finding:not([open])")) {
      details.open = true;
      folded.push(details);
    }
    again();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    for (const details of folded.splice(0)) details.open = false;
    again();
  });

  window.trimtab = { data, drawn, drawAll, copyButtons }; // for live.js, which follows a run
  copyButtons(document);
  requestAnimationFrame(() => setTimeout(() => drawAll(data.charts).then(() => { document.body.dataset.ready = "yes"; }), 0));
})();
