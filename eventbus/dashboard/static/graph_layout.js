// A worker: lays a graph out with dagre, so that the page stays quick meanwhile. It gets the sizes of nodes, and returns places.
"use strict";
onmessage = ({ data }) => {
  if (!self.dagre) importScripts(data.dagre);
  const graph = new dagre.graphlib.Graph({ multigraph: true }); // several transitions may lead from one place to another
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 42, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  data.sizes.forEach(([width, height], place) => graph.setNode(String(place), { width, height }));
  data.edges.forEach(([source, target, label], place) => {
    const size = label ? { width: 6.2 * label.length, height: 14, labelpos: "c" } : {};
    graph.setEdge(String(source), String(target), size, String(place));
  });
  dagre.layout(graph);
  const { width, height } = graph.graph();
  const nodes = data.sizes.map((_, place) => graph.node(String(place))).map(({ x, y }) => [x, y]);
  const found = data.edges.map(([source, target], place) => graph.edge(String(source), String(target), String(place)));
  const lines = found.map((edge) => edge.points.map(({ x, y }) => [x, y]));
  const labels = found.map(({ x, y }) => [x, y]);
  postMessage({ order: data.order, width, height, nodes, lines, labels });
};
