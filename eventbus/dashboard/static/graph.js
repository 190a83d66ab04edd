// Draws the graph of a flow: SVG from the JSON in a `data-graph`. While names and edges stay the same, a change of the JSON changes
// classes and texts alone; otherwise a worker lays the graph out anew. Names are put in as text, and never as markup.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const [NAME, KIND, STATE, SECOND, TITLE, LINK] = [0, 1, 2, 3, 4, 5];
  const [LABEL, CLASS] = [2, 3]; // of an edge
  const HEIGHT = 38;
  let layout = null;
  let order = 0; // of layouts: an answer to an older one means nothing
  let drawn = { shape: "", data: "", groups: [] };

  const make = (name, attributes, parent) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent?.append(made);
    return made;
  };
  const set = (element, name, value) => {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const write = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  const width = (node) => Math.max(96, 16 + 7.4 * Math.max(node[NAME].length, 0.9 * node[SECOND].length, 12));

  const refresh = (nodes) => {
    nodes.forEach((node, place) => {
      const group = drawn.groups[place];
      set(group.box, "class", `node ${node[KIND]} ${node[STATE]}${node[NAME].endsWith("*") ? " many" : ""}`);
      write(group.second, node[SECOND]);
      write(group.title, node[TITLE]);
    });
  };

  const draw = (place, graph, answer) => {
    const svg = make("svg", {
      role: "group", "aria-label": `${graph.nodes.length} parts of the flow`,
      width: Math.ceil(answer.width), height: Math.ceil(answer.height),
      viewBox: `0 0 ${Math.ceil(answer.width)} ${Math.ceil(answer.height)}`,
    });
    const tip = make("marker", {
      id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
    }, make("defs", {}, svg));
    make("path", { d: "M0 0 8 4 0 8z" }, tip);
    answer.lines.forEach(([first, ...points], index) => {
      const edge = graph.edges[index];
      const line = make("path", { d: `M${first.join(" ")} L${points.map((point) => point.join(" ")).join(" ")}`, "marker-end": "url(#tip)" }, svg);
      if (edge[CLASS]) line.setAttribute("class", edge[CLASS]);
      if (!edge[LABEL]) return;
      const [x, y] = answer.labels[index];
      make("text", { x, y: y + 4, "text-anchor": "middle", class: "label" }, svg).textContent = edge[LABEL];
    });
    drawn.groups = graph.nodes.map((node, index) => {
      const [x, y] = answer.nodes[index];
      const wide = width(node);
      const box = make("g", { transform: `translate(${x - wide / 2} ${y - HEIGHT / 2})` }, svg);
      const title = make("title", {}, box);
      const inner = node[LINK] ? make("a", { href: node[LINK] }, box) : box;
      make("rect", { width: wide, height: HEIGHT }, inner);
      make("text", { x: wide / 2, y: 16, "text-anchor": "middle" }, inner).textContent = node[NAME];
      const second = make("text", { x: wide / 2, y: 31, "text-anchor": "middle" }, inner);
      return { box, title, second };
    });
    refresh(graph.nodes);
    place.replaceChildren(svg);
  };

  const look = () => {
    const place = document.getElementById("graph");
    const data = place?.dataset.graph;
    if (!data || (data === drawn.data && place === drawn.place)) return;
    const graph = JSON.parse(data);
    const shape = JSON.stringify([graph.edges, graph.nodes.map((node) => [node[NAME], node[LINK]])]);
    const isSame = shape === drawn.shape && place === drawn.place;
    drawn = { ...drawn, shape, data, place };
    if (isSame) {
      if (drawn.groups.length) refresh(graph.nodes);
      else drawn.waiting = graph; // its layout is under way
      return;
    }
    drawn.groups = [];
    drawn.waiting = graph;
    layout ??= new Worker(place.dataset.layout);
    layout.onmessage = (event) => {
      if (event.data.order === order) draw(drawn.place, drawn.waiting, event.data);
    };
    order += 1;
    const sizes = graph.nodes.map((node) => [width(node), HEIGHT]);
    layout.postMessage({ order, dagre: place.dataset.dagre, sizes, edges: graph.edges });
  };

  look();
  const live = document.getElementById("content");
  new MutationObserver(look).observe(live, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-graph"] });
})();
