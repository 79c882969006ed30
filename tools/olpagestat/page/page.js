// Draws the plots of a report from the figures in the element `data`.
'use strict';
(() => {
  const all = JSON.parse(document.getElementById('data').textContent);
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const plots = [];
  // Tests and the browser's console find the plots here.
  window.olpagestat = {data: all, plots};

  const scaled = (value, step, units) => {
    let unit = 0;
    while (Math.abs(value) >= step && unit + 1 < units.length) value /= step, unit++;
    return (unit === 0 || Math.abs(value) >= 100 ? Math.round(value) : +value.toPrecision(3)) + units[unit];
  };
  const bytes = value => scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']);
  const duration = ns => scaled(ns, 1000, [' ns', ' \u00b5s', ' ms', ' s']);
  const number = value => scaled(value, 1000, ['', 'k', 'M', 'G']);
  const share = value => +(value * 100).toFixed(1) + ' %';
  const seconds = value => +value.toFixed(3) + ' s';
  const known = text => value => value == null ? '\u2013' : text(value);
  const counts = Array.from({length: 30}, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
  const powers = Array.from({length: 60}, (_, i) => 2 ** i);

  const width = place => Math.max(240, place.clientWidth);
  const axis = (more) => Object.assign({
    stroke: () => colour('text'), grid: {stroke: () => colour('grid'), width: 1},
    ticks: {stroke: () => colour('grid'), width: 1}}, more);

  function make(place, options, data) {
    const plot = new uPlot(Object.assign({width: width(place), height: 240}, options), data, place);
    plot.place = place;
    plot.name = place.dataset.plot;
    plots.push(plot);
    return plot;
  }

  const timeAxis = () => axis({values: (_, splits) => splits.map(seconds)});
  const timeSeries = {label: 'time', value: (_, value) => value == null ? '\u2013' : seconds(value)};
  // The pointer and a zoom are the same in all plots of a program.
  const together = index => ({sync: {key: 'program ' + index}, drag: {x: true, y: false}});

  // Values over time; `stacked`: each on top of those before, drawn from the topmost down.
  function overTime(place, index, times, series, {text, stacked = false, line = null, most = null}) {
    const shown = series.map(() => true);
    const columns = () => {
      if (!stacked) return [times, ...series.map(one => one.values)];
      const sum = times.map(() => 0), below = [];
      series.forEach((one, i) => {
        if (shown[i]) one.values.forEach((value, t) => { sum[t] += value ?? 0; });
        below.push(sum.slice());
      });
      return [times, ...below.reverse(), ...(line ? [line.values] : [])];
    };
    const order = stacked ? series.map((_, i) => series.length - 1 - i) : series.map((_, i) => i);
    const drawn = order.map(i => ({
      label: series[i].name, stroke: () => colour(series[i].colour), width: stacked ? 1 : 1.5,
      fill: stacked ? () => colour(series[i].colour) : undefined, points: {show: false},
      value: (_, __, ___, t) => t == null ? '\u2013' : known(text)(series[i].values[t])}));
    if (line) {
      drawn.push({label: line.name, stroke: () => colour('text'), width: 2, dash: [8, 5], points: {show: false},
        value: (_, value) => known(text)(value)});
    }
    make(place, {
      cursor: together(index), series: [timeSeries, ...drawn],
      // The line has the colour of text, which changes with the theme.
      legend: {markers: {stroke: (_, at) => at > series.length ? 'currentColor' : colour(series[order[at - 1]].colour)}},
      scales: {x: {time: false}, y: {range: (_, __, top) => [0, most ?? (top > 0 ? top * 1.05 : 1)]}},
      axes: [timeAxis(), axis({size: 80, incrs: text === bytes ? powers : undefined, values: (_, splits) => splits.map(text)})],
      hooks: {setSeries: [(plot, at, change) => {
        if (!stacked || at == null || change.show == null || at > series.length) return;
        shown[order[at - 1]] = change.show;
        const {min, max} = plot.scales.x;
        plot.setData(columns());
        plot.setScale('x', {min, max});
      }]},
    }, columns());
  }

  function waits(place, buckets) {
    const first = buckets.findIndex(count => count > 0);
    if (first < 0) {
      place.textContent = 'No launch waited.';
      return;
    }
    let last = buckets.length - 1;
    while (buckets[last] === 0) last--;
    const from = Math.max(0, first - 1), to = last + 1;
    const at = Array.from({length: to - from + 1}, (_, i) => from + i);
    make(place, {
      cursor: {drag: {x: false, y: false}},
      scales: {x: {time: false, range: [from - 0.6, to + 0.6]}, y: {range: (_, __, top) => [0, top * 1.05]}},
      series: [{label: 'waited', value: (_, i) => i == null ? '\u2013' : duration(2 ** i) + ' to ' + duration(2 ** (i + 1))},
        {label: 'launches and copies', stroke: () => colour('host'), fill: () => colour('host'), points: {show: false},
          paths: uPlot.paths.bars({size: [0.9, 80]}), value: (_, count) => known(number)(count)}],
      axes: [axis({incrs: [1, 2, 4, 8, 16], values: (_, splits) => splits.map(i => Number.isInteger(i) && i >= 0 ? duration(2 ** i) : '')}),
        axis({size: 80, incrs: counts, values: (_, splits) => splits.map(number)})],
    }, [at, at.map(i => buckets[i] ?? 0)]);
  }

  // By the numbers of places in the counters (pager/counters/details.h).
  const places = [null, ['empty', 'empty'], ['VRAM', 'vram'], ['host memory in place', 'place'], ['host memory', 'host'],
    ['remote', 'remote'], ['coming in', 'in'], ['going out', 'out'], ['VRAM', 'vram'], ['going out', 'out']];

  // Time to the right, addresses downwards; a run of the same colour is one rectangle.
  function map(place, index, one) {
    const times = one.seconds, rows = Math.max(0, ...one.places.map(row => row.length));
    if (rows === 0) {
      place.textContent = 'Nothing was mapped meanwhile.';
      return;
    }
    const told = document.createElement('p');
    told.className = 'dim';
    const cellAt = (t, y) => {
      const row = one.places[t] ?? '';
      return row[Math.floor(y / rows * row.length)];
    };
    make(place, {
      height: 384, cursor: together(index), legend: {show: false},
      scales: {x: {time: false}, y: {dir: -1, range: [0, rows]}},
      series: [timeSeries, {show: false}],
      axes: [timeAxis(), axis({size: 130, grid: {show: false}, values: (_, splits) => splits.map(at =>
        at === 0 ? one.first_address ?? '' : at === rows ? one.last_address ?? '' : ''),
        splits: () => [0, rows]})],
      hooks: {
        drawClear: [plot => {
          const {left, top, width: wide, height: high} = plot.bbox, context = plot.ctx;
          context.save();
          context.beginPath();
          context.rect(left, top, wide, high);
          context.clip();
          for (let t = 0; t + 1 < times.length; t++) {
            const row = one.places[t];
            const x = plot.valToPos(times[t], 'x', true), end = plot.valToPos(times[t + 1], 'x', true);
            if (end < left || x > left + wide) continue;
            for (let begin = 0; begin < row.length;) {
              let next = begin;
              const style = places[row[begin]]?.[1];
              while (next < row.length && places[row[next]]?.[1] === style) next++;
              if (style) {
                context.fillStyle = colour(style);
                context.fillRect(x, top + begin / row.length * high, end - x + 0.5, (next - begin) / row.length * high);
              }
              begin = next;
            }
          }
          context.restore();
        }],
        setCursor: [plot => {
          const {idx, left, top} = plot.cursor;
          const inside = idx != null && left >= 0 && top >= 0;
          // The moment that is nearest may be the one behind the rectangle.
          const t = inside && idx > 0 && times[idx] > plot.posToVal(left, 'x') ? idx - 1 : idx;
          const cell = inside ? places[cellAt(t, plot.posToVal(top, 'y'))] : null;
          told.textContent = cell ? seconds(times[t]) + ': ' + cell[0] : 'Point at the map for the place of pages.';
        }],
      },
    }, [times, times.map(() => null)]);
    const legend = document.createElement('p');
    legend.className = 'legend';
    for (const [name, style] of places.slice(1, 8)) {
      const square = document.createElement('i');
      square.style.background = `var(--${style})`;
      legend.append(square, name);
    }
    place.append(legend, told);
  }

  const coloured = (group, colours) => Object.keys(group).map((name, i) => ({name, colour: colours[i], values: group[name]}));
  const draw = {
    residency: (place, index, one) => overTime(place, index, one.seconds,
      coloured(one.residency_bytes, ['vram', 'place', 'host', 'remote']),
      {text: bytes, stacked: true, line: {name: 'VRAM budget', values: one.vram_budget_bytes}}),
    extents: (place, index, one) => overTime(place, index, one.seconds,
      coloured(one.extents_per_second, ['out', 'in', 'place', 'remote']), {text: number}),
    bytes: (place, index, one) => overTime(place, index, one.seconds,
      coloured(one.bytes_per_second, ['vram', 'remote', 'in', 'out']), {text: bytes}),
    hits: (place, index, one) => overTime(place, index, one.seconds,
      [{name: 'hit rate', colour: 'vram', values: one.hit_rate}], {text: share, most: 1.02}),
    waits: (place, index, one) => waits(place, one.fault_wait_log2_ns),
    map,
    executors: (place, index, one) => overTime(place, index, one.seconds,
      one.executors.map((each, i) => ({name: each.gpunode, values: each.owned_bytes,
        colour: ['vram', 'host', 'in', 'remote', 'place', 'out'][i % 6]})), {text: bytes, stacked: true}),
  };
  for (const section of document.querySelectorAll('section.program')) {
    const index = Number(section.dataset.index), one = all[index];
    for (const place of section.querySelectorAll('.plot')) {
      if (one.seconds.length < 2) place.textContent = 'Too short for a plot.';
      else draw[place.dataset.plot](place, index, one);
    }
  }

  const again = () => plots.forEach(plot => plot.redraw(false, true));
  addEventListener('resize', () => plots.forEach(plot => plot.setSize({width: width(plot.place), height: plot.height})));
  const dark = matchMedia('(prefers-color-scheme: dark)');
  dark.addEventListener('change', again);
  document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement, now = root.dataset.theme ?? (dark.matches ? 'dark' : 'light');
    root.dataset.theme = now === 'dark' ? 'light' : 'dark';
    again();
  });
})();
