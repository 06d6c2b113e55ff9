//! A graph of files: its circles, and the edges that hold them together.

use std::collections::{BTreeMap, BTreeSet};

/// Files, and which of them names what of which other one.
pub struct Graph {
    files: Vec<String>,
    edges: BTreeMap<(usize, usize), BTreeSet<(String, usize)>>,
}

/// An edge, and how many files its circle would have without it and those before it in the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    pub from: String,
    pub to: String,
    /// What `from` names of `to`, each with a line.
    pub names: Vec<(String, usize)>,
    /// Files in the largest circle that is left.
    pub leaves: usize,
}

impl Graph {
    /// One without edges.
    pub fn new(files: Vec<String>) -> Graph {
        Graph { files, edges: BTreeMap::new() }
    }

    /// The file `from` names `name` of the file `to`.
    pub fn note(&mut self, from: usize, to: usize, name: String, line: usize) {
        let names = self.edges.entry((from, to)).or_default();
        if !names.iter().any(|(known, _)| *known == name) {
            names.insert((name, line));
        }
    }

    /// What circles there are, the largest first; a file alone is none.
    pub fn circles(&self) -> Vec<BTreeSet<usize>> {
        circles(self.files.len(), &self.edges.keys().copied().collect())
    }

    /// A file's path.
    pub fn file(&self, file: usize) -> &str {
        &self.files[file]
    }

    /// All edges: from which file to which.
    #[cfg(test)]
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.edges.keys().copied()
    }

    /// Edges whose removal leaves no circle among `members`, as few as a search from order to order finds.
    pub fn cuts(&self, members: &BTreeSet<usize>, most: usize) -> Vec<Cut> {
        let within = |(from, to): &&(usize, usize)| members.contains(from) && members.contains(to);
        let mut left: BTreeSet<(usize, usize)> = self.edges.keys().filter(within).copied().collect();
        let order = self.order(members, &left);
        let place = |file: usize| order.iter().position(|of| *of == file);
        let mut upward: Vec<(usize, usize)> =
            left.iter().copied().filter(|(from, to)| place(*from) > place(*to)).collect();
        let mut found = Vec::new();
        while largest(self.files.len(), &left) > most {
            let best = upward.iter().copied().min_by_key(|edge| {
                let mut without = left.clone();
                without.remove(edge);
                let rest = circles(self.files.len(), &without);
                (rest.iter().map(|circle| circle.len() * circle.len()).sum::<usize>(), self.edges[edge].len())
            });
            let Some(best) = best else { break };
            upward.retain(|edge| *edge != best);
            left.remove(&best);
            found.push(Cut {
                from: self.files[best.0].clone(),
                to: self.files[best.1].clone(),
                names: self.edges[&best].iter().cloned().collect(),
                leaves: largest(self.files.len(), &left),
            });
        }
        found
    }

    /// The members so that few edges lead from a later one to an earlier one; those that name many come first.
    fn order(&self, members: &BTreeSet<usize>, edges: &BTreeSet<(usize, usize)>) -> Vec<usize> {
        let weight = |edge: (usize, usize)| -> i64 {
            if edges.contains(&edge) {
                i64::try_from(self.edges[&edge].len()).unwrap_or(i64::MAX).min(8) + 2
            } else {
                0
            }
        };
        let excess = |file: &usize| {
            let out = edges.iter().filter(|(from, _)| from == file).count();
            let into = edges.iter().filter(|(_, to)| to == file).count();
            i64::try_from(into).unwrap_or(0) - i64::try_from(out).unwrap_or(0)
        };
        let mut order: Vec<usize> = members.iter().copied().collect();
        order.sort_by_key(excess);
        loop {
            let mut moved = false;
            for file in members {
                let from = order.iter().position(|of| of == file).unwrap_or_default();
                // What is saved by standing at another place, counted from the present one on.
                let (mut best, mut place) = (0, from);
                for step in [-1i64, 1] {
                    let mut saved = 0;
                    let mut at = i64::try_from(from).unwrap_or(0) + step;
                    while let Some(other) = usize::try_from(at).ok().and_then(|at| order.get(at)) {
                        saved += step * (weight((*other, *file)) - weight((*file, *other)));
                        if saved > best {
                            (best, place) = (saved, usize::try_from(at).unwrap_or(from));
                        }
                        at += step;
                    }
                }
                if best > 0 {
                    order.remove(from);
                    order.insert(place, *file);
                    moved = true;
                }
            }
            if !moved {
                return order;
            }
        }
    }
}

fn largest(files: usize, edges: &BTreeSet<(usize, usize)>) -> usize {
    circles(files, edges).first().map_or(1, BTreeSet::len)
}

/// Files that reach each other, two and more.
fn circles(files: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<BTreeSet<usize>> {
    let mut to = vec![Vec::new(); files];
    let mut back = vec![Vec::new(); files];
    for (from, into) in edges {
        to[*from].push(*into);
        back[*into].push(*from);
    }
    let mut ended = Vec::new();
    let mut seen = vec![false; files];
    for file in 0..files {
        walk(file, &to, &mut seen, &mut ended);
    }
    let mut seen = vec![false; files];
    let mut found = Vec::new();
    for file in ended.into_iter().rev() {
        let mut circle = Vec::new();
        walk(file, &back, &mut seen, &mut circle);
        if circle.len() > 1 {
            found.push(circle.into_iter().collect::<BTreeSet<_>>());
        }
    }
    found.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    found
}

/// Goes wherever edges lead, and notes each file when all behind it are noted.
fn walk(from: usize, edges: &[Vec<usize>], seen: &mut [bool], ended: &mut Vec<usize>) {
    if std::mem::replace(&mut seen[from], true) {
        return;
    }
    let mut way = vec![(from, 0)];
    while let Some((file, next)) = way.last_mut() {
        if let Some(to) = edges[*file].get(*next).copied() {
            *next += 1;
            if !std::mem::replace(&mut seen[to], true) {
                way.push((to, 0));
            }
        } else {
            ended.push(*file);
            way.pop();
        }
    }
}
