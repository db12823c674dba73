//! Maximum flow with real capacities (Dinic's algorithm; amounts below 1e-12 count as none).

use std::collections::VecDeque;

const NOTHING: f64 = 1e-12;

#[derive(Debug, Clone)]
pub(crate) struct Network {
    /// Edges leaving each node; edge `e ^ 1` is the reverse of `e`.
    leaving: Vec<Vec<usize>>,
    to: Vec<usize>,
    capacity: Vec<f64>,
    left: Vec<f64>,
}

impl Network {
    /// A network of `nodes` nodes without edges.
    pub fn new(nodes: usize) -> Self {
        Self { leaving: vec![Vec::new(); nodes], to: Vec::new(), capacity: Vec::new(), left: Vec::new() }
    }

    /// Adds an edge and returns its index.
    pub fn edge(&mut self, from: usize, to: usize, capacity: f64) -> usize {
        let index = self.to.len();
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0.0)] {
            self.leaving[from].push(self.to.len());
            self.to.push(to);
            self.capacity.push(capacity);
            self.left.push(0.0);
        }
        index
    }

    pub fn set_capacity(&mut self, edge: usize, capacity: f64) {
        self.capacity[edge] = capacity;
    }

    pub fn ends(&self, edge: usize) -> (usize, usize) {
        (self.to[edge ^ 1], self.to[edge])
    }

    /// Forward edges: from, to, capacity, whether it is among `marked` (ascending).
    pub fn edges<'a>(&'a self, marked: &'a [usize]) -> impl Iterator<Item = (usize, usize, f64, bool)> + 'a {
        (0..self.to.len())
            .step_by(2)
            .map(|e| (self.to[e ^ 1], self.to[e], self.capacity[e], marked.binary_search(&e).is_ok()))
    }

    /// Computes a maximum flow and returns its amount; residual capacities stay for the queries below.
    pub fn max_flow(&mut self, source: usize, sink: usize) -> f64 {
        self.left.copy_from_slice(&self.capacity);
        let mut total = 0.0;
        loop {
            let levels = self.levels(source);
            if levels[sink] == usize::MAX {
                return total;
            }
            let mut next = vec![0; self.leaving.len()];
            loop {
                let pushed = self.push(source, sink, f64::INFINITY, &levels, &mut next);
                if pushed <= NOTHING {
                    break;
                }
                total += pushed;
            }
        }
    }

    fn levels(&self, source: usize) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.leaving.len()];
        levels[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &e in &self.leaving[node] {
                let to = self.to[e];
                if self.left[e] > NOTHING && levels[to] == usize::MAX {
                    levels[to] = levels[node] + 1;
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    fn push(&mut self, node: usize, sink: usize, most: f64, levels: &[usize], next: &mut [usize]) -> f64 {
        if node == sink {
            return most;
        }
        while next[node] < self.leaving[node].len() {
            let e = self.leaving[node][next[node]];
            let to = self.to[e];
            if self.left[e] > NOTHING && levels[to] == levels[node] + 1 {
                let pushed = self.push(to, sink, most.min(self.left[e]), levels, next);
                if pushed > NOTHING {
                    self.left[e] -= pushed;
                    self.left[e ^ 1] += pushed;
                    return pushed;
                }
            }
            next[node] += 1;
        }
        0.0
    }

    /// Nodes that residual capacity connects from the source: the source's side of a minimum cut.
    pub fn source_side(&self, source: usize) -> Vec<bool> {
        self.levels(source).into_iter().map(|level| level != usize::MAX).collect()
    }

    /// Nodes from which residual capacity (above 1e-9) leads to the sink.
    pub fn reaches_sink(&self, sink: usize) -> Vec<bool> {
        let mut reach = vec![false; self.leaving.len()];
        reach[sink] = true;
        let mut queue = VecDeque::from([sink]);
        while let Some(node) = queue.pop_front() {
            for &e in &self.leaving[node] {
                let from = self.to[e];
                if self.left[e ^ 1] > 1e-9 && !reach[from] {
                    reach[from] = true;
                    queue.push_back(from);
                }
            }
        }
        reach
    }

    /// Whether residual capacity (above 1e-9) leads from the source to a node.
    pub fn residual_from_source(&self, source: usize, node: usize) -> bool {
        let mut at = node;
        // Group nodes form a tree: walk up its forward edges.
        while at != source {
            let up = self.leaving[at].iter().copied().find(|&e| e % 2 == 1 && self.to[e] < at.max(1));
            let Some(up) = up else { return false };
            if self.left[up ^ 1] <= 1e-9 {
                return false;
            }
            at = self.to[up];
        }
        true
    }
}
