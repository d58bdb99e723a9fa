/* The charts of the HTML report, drawn with Apache ECharts. Names are set as text only: no HTML, no rich text. */
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  const NARROW = 640;
  const SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';

  function make(tag, text, className) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  }
  function palette() {
    const style = getComputedStyle(document.documentElement);
    return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${String(name)}`).trim() });
  }
  function formatTime(seconds, digits) {
    const size = Math.abs(seconds);
    const [scale, unit] = size >= 1 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : size >= 1e-6 || size === 0 ? [1e6, "us"] : [1e9, "ns"];
    return `${Number((seconds * scale).toPrecision(digits || 3))} ${unit}`;
  }
  function tick(seconds, digits) { return seconds === 0 ? "0" : formatTime(seconds, digits); }
  function tip(title, lines) {
    const box = make("div", undefined, "tip");
    box.append(make("b", title), ...lines.filter(Boolean).map((line) => make("div", line)));
    return box;
  }
  function tooltip(colors, formatter) {
    return { trigger: "item", confine: true, formatter, backgroundColor: colors.raised, borderColor: colors.line, padding: [6, 10], transitionDuration: 0 };
  }
  function base(element) {
    // The page says what a chart shows, and which table has the same numbers.
    return { animation: false, textStyle: { fontFamily: SANS }, aria: { enabled: true, label: { description: element.dataset.label } } };
  }
  function valueAxis(colors, extra) {
    return { type: "value", axisLine: { show: false }, axisTick: { show: false }, splitLine: { lineStyle: { color: colors.line } }, axisLabel: { color: colors.muted, fontSize: 11, hideOverlap: true }, ...extra };
  }
  function addChart(id, build) {
    const element = document.getElementById(id);
    if (!element) return null;
    element.hidden = false;
    const figure = element.closest("figure.charted");
    if (figure) figure.hidden = false;
    const made = { element, build, chart: null, onDrawn: null };
    charts.push(made);
    element.style.height = `${build(element, element.clientWidth, palette()).height}px`;
    return made;
  }
  /** Draws one chart after the other, so that the page can be read and scrolled meanwhile. */
  function drawNext() {
    const made = charts.find((one) => !one.chart);
    if (!made) {
      document.documentElement.dataset.charts = "drawn";
      return;
    }
    draw(made);
    setTimeout(drawNext);
  }
  function draw(made) {
    const { option, height } = made.build(made.element, made.element.clientWidth, palette());
    made.element.style.height = `${height}px`;
    if (!made.chart) {
      made.chart = echarts.init(made.element, null, { renderer: "canvas" });
      made.element.setAttribute("role", "img");
      made.element.setAttribute("aria-label", made.element.dataset.label);
      if (made.onDrawn) made.onDrawn(made);
    } else made.chart.resize();
    made.chart.setOption({ ...base(made.element), ...option }, true);
    made.width = made.element.clientWidth;
  }
  function redraw() { charts.forEach(draw); }

  /** Draws an interval: a horizontal line from low to high, with caps. */
  function whisker(api, low, high, place, color, cap) {
    const [from, y] = api.coord([low, place]), to = api.coord([high, place])[0];
    const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: color, lineWidth: 1.5 } });
    return { type: "group", children: [line(from, y, to, y), line(from, y - cap, from, y + cap), line(to, y - cap, to, y + cap)] };
  }

  function buildBars(element, width, colors) {
    const bars = data.bars, isNarrow = width < NARROW, hasRatios = bars.some((bar) => bar.ratio);
    const rowHeight = isNarrow ? 42 : 30, plot = rowHeight * bars.length;
    const names = bars.map((bar) => bar.name);
    const longest = Math.max(...names.map((name) => name.length));
    const left = isNarrow ? 6 : Math.min(240, 12 + 7 * longest);
    const inner = width - left - 12, split = hasRatios && !isNarrow;
    const grids = [{ left, top: 12, height: plot, width: split ? inner * 0.56 : inner - 4 }];
    if (hasRatios) grids.push(split ? { left: left + inner * 0.62, top: 12, height: plot, width: inner * 0.37 } : { left, top: plot + 78, height: plot, width: inner - 4 });
    const category = (gridIndex, show) => ({
      type: "category", gridIndex, inverse: true, data: names, axisTick: { show: false }, axisLine: { lineStyle: { color: colors.line } },
      axisLabel: { show, color: colors.text, fontSize: 12.5, width: left - 12, overflow: "truncate" },
    });
    const longestTime = Math.max(...bars.map((bar) => bar.seconds));
    const named = (name) => ({ name, nameLocation: "middle", nameGap: 24, nameTextStyle: { color: colors.muted, fontSize: 11.5 } });
    const xAxis = [valueAxis(colors, { gridIndex: 0, ...named("time per call"), max: longestTime * (isNarrow ? 1.3 : 1.18), axisLabel: { color: colors.muted, fontSize: 11, showMaxLabel: false, hideOverlap: true, formatter: (value) => tick(value) } })];
    const yAxis = [category(0, !isNarrow)];
    const nameAbove = isNarrow ? (bar) => ({ show: true, position: [2, -16], formatter: () => `${bar.name}   ${bar.text}`, color: colors.text, backgroundColor: colors.ground, fontSize: 12 })
      : () => ({ show: false });
    const series = [{
      type: "bar", xAxisIndex: 0, yAxisIndex: 0, barWidth: isNarrow ? 10 : 16,
      data: bars.map((bar) => ({ value: bar.seconds, label: nameAbove(bar), itemStyle: { color: { best: colors.best, baseline: colors.baseline, other: colors.bar }[bar.role], borderRadius: 1 } })),
    }, {
      type: "custom", xAxisIndex: 0, yAxisIndex: 0, encode: { x: 1, y: 0 }, silent: true, z: 4,
      data: bars.map((bar, place) => [place, bar.seconds]),
      renderItem: (params, api) => {
        if (isNarrow) return null;
        const [x, y] = api.coord([api.value(1), api.value(0)]);
        return { type: "text", x: x + 8, y, style: { text: bars[params.dataIndex].text, fill: colors.text, fontSize: 12.5, fontFamily: SANS, verticalAlign: "middle" } };
      },
    }];
    if (hasRatios) {
      const ratios = bars.flatMap((bar, place) => (bar.ratio ? [{ place, ...bar.ratio }] : []));
      const high = Math.max(1, ...ratios.map((ratio) => ratio.high)), low = Math.min(1, ...ratios.map((ratio) => ratio.low));
      const room = (high - low) * 0.06 || 0.05;
      const baseline = bars.find((bar) => bar.role === "baseline") || bars.find((bar) => !bar.ratio);
      xAxis.push(valueAxis(colors, { gridIndex: 1, ...named(baseline ? `speed against ${baseline.name}` : "speed against the baseline"), min: Math.max(0, low - room), max: high + room, scale: true, axisLabel: { color: colors.muted, fontSize: 11, hideOverlap: true, showMinLabel: false, showMaxLabel: false, formatter: (value) => `${Number(value.toFixed(2))}x` } }));
      yAxis.push(category(1, false));
      const verdictColor = { faster: colors.best, slower: colors.warning };
      series.push({
        type: "custom", xAxisIndex: 1, yAxisIndex: 1, encode: { x: [1, 2, 3], y: 0 },
        data: ratios.map((ratio) => [ratio.place, ratio.low, ratio.median, ratio.high]),
        renderItem: (params, api) => {
          const ratio = ratios[params.dataIndex], color = verdictColor[ratio.verdict] || colors.baseline;
          const drawn = whisker(api, ratio.low, ratio.high, ratio.place, color, 4);
          const [x, y] = api.coord([ratio.median, ratio.place]);
          drawn.children.push({ type: "circle", shape: { cx: x, cy: y, r: 4.5 }, style: { fill: color } });
          if (isNarrow) drawn.children.push({ type: "text", x: grids[1].left + 2, y: y - 15, style: { text: `${bars[ratio.place].name}   ${ratio.text}`, fill: colors.text, backgroundColor: colors.ground, fontSize: 12, fontFamily: SANS, verticalAlign: "middle" } });
          return drawn;
        },
      }, {
        type: "line", xAxisIndex: 1, yAxisIndex: 1, data: [], silent: true,
        markLine: { symbol: "none", silent: true, label: { show: false }, lineStyle: { color: colors.muted, type: "dashed" }, data: [{ xAxis: 1 }] },
      });
    }
    const about = (params) => {
      const bar = bars[params.componentSubType === "custom" ? params.value[0] : params.dataIndex];
      return tip(bar.name, [`${bar.text} per call`, bar.ratio && `${bar.ratio.text}: ${bar.ratio.verdict}`, bar.role === "baseline" && "the baseline"]);
    };
    return { height: (hasRatios && !split ? 2 * plot + 66 : plot) + 60, option: { grid: grids, xAxis, yAxis, series, tooltip: tooltip(colors, about) } };
  }

  // ---------------------------------------------------------------- timeline
  const LANE = 34, NARROW_LANE = 44;
  const view = { number: 0, from: 0, to: 1, end: 1, chosen: -1 };

  function showTimeline(number) {
    const line = data.timelines[number];
    const end = Math.max(1, ...line.starts.map((start, place) => start + line.lengths[place]));
    Object.assign(view, { number, from: 0, to: end, end, chosen: -1 });
  }
  function buildTimeline(element, width, colors) {
    const line = data.timelines[view.number], isNarrow = width < NARROW;
    const what = new Map(line.conversions), inPairs = new Set(line.in_pairs);
    const lanes = [...line.lanes];
    const conversionLane = line.conversions.length ? lanes.push("conversions") - 1 : -1;
    const pairLane = line.pairs.length ? lanes.push("round trips") - 1 : -1;
    const left = isNarrow ? 8 : 96, right = 14, lane = isNarrow ? NARROW_LANE : LANE, down = isNarrow ? 8 : 0; // names are above the bars
    const color = (place) => (inPairs.has(place) ? colors.trip : what.has(place) ? colors.conversion : colors.kernel);
    const box = (row, place) => [line.starts[place], line.starts[place] + line.lengths[place], row, place];
    const renderItem = (height) => (params, api) => {
      const [x, y] = api.coord([api.value(0), api.value(2)]), x2 = api.coord([api.value(1), api.value(2)])[0];
      const shape = echarts.graphic.clipRectByRect({ x, y: y - height / 2 + down, width: Math.max(1, x2 - x), height }, params.coordSys);
      return shape && { type: "rect", transition: [], shape, style: { fill: api.visual("color") } };
    };
    const item = (value, fill) => ({ value, itemStyle: { color: fill } });
    const custom = (rows, height) => ({ type: "custom", clip: true, encode: { x: [0, 1], y: 2 }, data: rows, renderItem: renderItem(height) });
    const series = [
      custom(line.starts.map((_, place) => item(box(line.kernel_lanes[place], place), color(place))), 20),
      custom(line.conversions.map(([place]) => item(box(conversionLane, place), color(place))), 20),
      custom(line.pairs.map((pair, place) => item([pair.start, pair.end, pairLane, place], colors.trip)), 8),
      { type: "line", data: [], silent: true, markLine: { symbol: "none", silent: true, label: { show: false }, lineStyle: { color: colors.text, type: "solid" }, data: view.chosen < 0 ? [] : [{ xAxis: line.starts[view.chosen] }] } },
    ];
    const about = (params) => {
      if (params.seriesIndex === 2) return tip(line.pairs[params.dataIndex].text, []);
      const place = params.value[3];
      return tip(line.names[line.kernels[place]], [what.get(place), formatTime(line.lengths[place] / 1e9), `at ${formatTime(line.starts[place] / 1e9, 6)}, ${line.lanes[line.kernel_lanes[place]]}`, inPairs.has(place) && "part of a round trip"]);
    };
    const ticks = () => Math.min(9, Math.ceil(3 + Math.log10(view.end / Math.max(1, view.to - view.from))));
    const zoom = { xAxisIndex: 0, filterMode: "weakFilter", startValue: view.from, endValue: view.to };
    const dataZoom = [{ ...zoom, type: "slider", left, right, bottom: 8, height: 22, showDataShadow: false, brushSelect: false, showDetail: false, borderColor: colors.line, fillerColor: "rgba(128,140,152,.22)", handleStyle: { color: colors.ground, borderColor: colors.muted }, moveHandleSize: 0 }];
    // A finger that scrolls the page must not be caught by the chart.
    if (!window.matchMedia("(pointer: coarse)").matches) dataZoom.push({ ...zoom, type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false, preventDefaultMouseMove: false });
    const height = lanes.length * lane;
    return {
      height: height + 70,
      option: {
        grid: { left, right, top: 6, height },
        xAxis: valueAxis(colors, { min: 0, max: view.end, axisLabel: { color: colors.muted, fontSize: 11, hideOverlap: true, showMaxLabel: false, formatter: (value) => tick(value / 1e9, ticks()) } }),
        yAxis: { type: "category", inverse: true, data: lanes, axisTick: { show: false }, axisLine: { show: false }, splitLine: { show: true, lineStyle: { color: colors.line } }, axisLabel: { show: true, inside: isNarrow, verticalAlign: isNarrow ? "bottom" : "middle", padding: isNarrow ? [0, 0, 3, -6] : 0, color: colors.muted, fontSize: isNarrow ? 10 : 12 }, z: isNarrow ? 5 : 0 },
        series, dataZoom, tooltip: tooltip(colors, about),
      },
    };
  }
  function zoomTo(made, from, to) {
    const span = Math.min(view.end, Math.max(100, to - from));
    view.from = Math.min(Math.max(0, from), view.end - span);
    view.to = view.from + span;
    draw(made);
  }
  function addTimelineTools(made) {
    const figure = made.element.closest("figure"), status = document.getElementById("timeline-status");
    const say = () => { status.textContent = `Shown: ${formatTime(view.from / 1e9, 4)} to ${formatTime(view.to / 1e9, 4)} of ${formatTime(view.end / 1e9, 4)}.`; };
    made.chart.on("datazoom", () => {
      const { startValue, endValue } = made.chart.getOption().dataZoom[0];
      Object.assign(view, { from: startValue, to: endValue });
    });
    const choice = document.getElementById("timeline-choice");
    if (choice) {
      choice.addEventListener("change", () => {
        showTimeline(Number(choice.value));
        draw(made);
        prepare();
        say();
      });
    }
    const moves = { in: [0.25, 0.75], out: [-0.5, 1.5], left: [-0.5, 0.5], right: [0.5, 1.5], all: [-Infinity, Infinity] };
    figure.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
      const [from, to] = moves[button.dataset.zoom], span = view.to - view.from;
      if (button.dataset.zoom === "all") zoomTo(made, 0, view.end);
      else zoomTo(made, view.from + from * span, view.from + to * span);
      say();
    }));
    const steps = Array.from(figure.querySelectorAll("[data-step]"));
    function prepare() {
      steps.forEach((button) => { button.disabled = data.timelines[view.number].conversions.length === 0; });
    }
    steps.forEach((button) => button.addEventListener("click", () => {
      const line = data.timelines[view.number], count = line.conversions.length;
      const before = line.conversions.findIndex(([place]) => place === view.chosen);
      const next = before < 0 ? (button.dataset.step > 0 ? 0 : count - 1) : (before + Number(button.dataset.step) + count) % count;
      const [place, text] = line.conversions[next];
      view.chosen = place;
      const span = Math.min(view.to - view.from, Math.max(view.end / 20, 40 * line.lengths[place]));
      zoomTo(made, line.starts[place] - span / 2, line.starts[place] + span / 2);
      status.textContent = `Conversion ${next + 1} of ${count}: ${text}, at ${formatTime(line.starts[place] / 1e9, 6)}.`;
    }));
    prepare();
  }

  // ---------------------------------------------------------------- layout flow
  const BOX = 46, GAP = 40;
  const FORMATS = { channels_last: "channels-last", contiguous: "contiguous", blocked: "blocked", unknown: "unknown" };

  function buildFlow(flow) {
    return (element, width, colors) => {
      const boxWidth = Math.min(360, width - 16), height = flow.boxes.length * (BOX + GAP) - GAP + 8, x = width / 2;
      const at = flow.boxes.map((_, row) => row * (BOX + GAP) + 4 + BOX / 2);
      const stroke = (box) => (box.is_redundant ? colors.trip : box.is_conversion ? colors.conversion : colors[FORMATS[box.memory_format]] || colors.unknown);
      const edge = (text, row) => {
        const y1 = at[row] + BOX / 2, y2 = at[row + 1] - BOX / 2 - 5, color = colors[FORMATS[flow.boxes[row].memory_format]] || colors.unknown;
        return { type: "group", silent: true, children: [
          { type: "line", shape: { x1: x, y1, x2: x, y2 }, style: { stroke: color, lineWidth: 2 } },
          { type: "polygon", shape: { points: [[x, y2 + 5], [x - 4.5, y2 - 3], [x + 4.5, y2 - 3]] }, style: { fill: color } },
          { type: "text", x, y: (y1 + y2) / 2, style: { text, fill: colors.muted, fontSize: 11, fontFamily: SANS, align: "center", verticalAlign: "middle", width: width - 8, overflow: "truncate", backgroundColor: text ? colors.ground : undefined, padding: [1, 4] } },
        ] };
      };
      const step = (box, y) => {
        const left = x - boxWidth / 2, text = (value, top, room, style) => ({ type: "text", x: left + 9, y: top, style: { text: value, fontFamily: SANS, width: room, overflow: "truncate", verticalAlign: "middle", ...style } });
        const room = boxWidth - 18, time = box.time ? 62 : 0;
        const children = [
          { type: "rect", shape: { x: left, y: y - BOX / 2, width: boxWidth, height: BOX, r: 3 }, style: { fill: colors.raised, stroke: colors.line } },
          { type: "rect", shape: { x: left, y: y - BOX / 2, width: box.is_redundant ? 6 : 4, height: BOX, r: 1 }, style: { fill: stroke(box) } },
          text(box.label, y - (box.detail ? 9 : 0), room - time, { fill: colors.text, fontSize: 12.5, fontWeight: 600 }),
        ];
        if (box.detail) children.push(text(box.detail, y + 10, room, { fill: colors.muted, fontSize: 11 }));
        if (box.time) children.push({ type: "text", x: left + boxWidth - 9, y: y - (box.detail ? 9 : 0), style: { text: box.time, fill: box.is_redundant ? colors.trip : colors.text, fontSize: 12, fontFamily: SANS, align: "right", verticalAlign: "middle" } });
        return { type: "group", children };
      };
      const axis = (max) => ({ type: "value", show: false, min: 0, max });
      const about = (params) => {
        const box = flow.boxes[params.dataIndex];
        return tip(box.label, [box.detail, box.time, box.is_redundant && "part of a round trip", FORMATS[box.memory_format] !== "unknown" && FORMATS[box.memory_format]]);
      };
      return {
        height,
        option: {
          grid: { left: 0, top: 0, width, height },
          xAxis: axis(width), yAxis: { ...axis(height), inverse: true },
          series: [
            { type: "custom", silent: true, z: 2, data: flow.boxes.slice(1).map((_, row) => [0, 0, row]), renderItem: (params) => edge(flow.boxes[params.dataIndex].layout, params.dataIndex) },
            { type: "custom", z: 3, data: flow.boxes.map((_, place) => [0, 0, place]), renderItem: (params) => step(flow.boxes[params.dataIndex], at[params.dataIndex]) },
          ],
          tooltip: tooltip(colors, about),
        },
      };
    };
  }

  // ---------------------------------------------------------------- all of them
  if (data.bars.length) addChart("chart-bars", buildBars);
  data.flows.forEach((flow, place) => addChart(`chart-flow-${place + 1}`, buildFlow(flow)));
  if (data.timelines.length) {
    showTimeline(0);
    addChart("chart-timeline", buildTimeline).onDrawn = addTimelineTools;
  }
  document.querySelectorAll("p.charted").forEach((key) => { key.hidden = false; });
  drawNext();

  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { if (charts.some((made) => made.width !== made.element.clientWidth)) redraw(); });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const onPaper = (isPaper) => () => {
    document.documentElement.classList.toggle("paper", isPaper);
    redraw();
  };
  window.addEventListener("beforeprint", onPaper(true));
  window.addEventListener("afterprint", onPaper(false));
})();
