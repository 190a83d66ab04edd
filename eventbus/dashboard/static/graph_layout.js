// A worker: lays a graph out with dagre, so that the page stays quick meanwhile. It gets the sizes of nodes, and returns places.
"use strict";
onmessage = ({ data }) => {
  if (!self.dagre) importScripts(data.dagre);
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 42, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  data.sizes.forEach(([width, height], place) => graph.setNode(String(place), { width, height }));
  for (const [source, target] of data.edges) graph.setEdge(String(source), String(target));
  dagre.layout(graph);
  const { width, height } = graph.graph();
  const nodes = data.sizes.map((_, place) => graph.node(String(place))).map(({ x, y }) => [x, y]);
  const lines = graph.edges().map((edge) => graph.edge(edge).points.map(({ x, y }) => [x, y]));
  postMessage({ order: data.order, width, height, nodes, lines });
};
