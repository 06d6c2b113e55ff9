//! Copies of vBuckets that a node has and whose files cannot be believed: what it reports, and what is told of them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::leader::damage::is_safe;
use crate::state::{NodeId, Step};
use crate::view::View;

/// What of a bucket is damaged on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// The vBuckets whose copies are damaged, as ranges, both ends included: at most 512 of them for 1,024 vBuckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ranges: Vec<(u16, u16)>,
    /// The vBuckets whose copies cannot be read now because the disk refuses, which may be over later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refused: Vec<(u16, u16)>,
    /// Those of `ranges` that the node serves from what can be read: the damage was found meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    served: Vec<(u16, u16)>,
    /// The bucket as a whole is down because something that all of its vBuckets need is damaged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_down: bool,
}

impl Damaged {
    /// These vBuckets.
    pub fn of(vbuckets: impl IntoIterator<Item = u16>) -> Damaged {
        Damaged { ranges: ranges(vbuckets), ..Damaged::default() }
    }

    /// The same, and these that the disk refuses to read now.
    pub fn and_refused(self, vbuckets: impl IntoIterator<Item = u16>) -> Damaged {
        Damaged { refused: ranges(vbuckets), ..self }
    }

    /// The same, and these of the damaged ones are served from what can be read.
    pub fn and_served(self, vbuckets: impl IntoIterator<Item = u16>) -> Damaged {
        Damaged { served: ranges(vbuckets), ..self }
    }

    /// The whole bucket.
    pub fn down() -> Damaged {
        Damaged { is_down: true, ..Damaged::default() }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.refused.is_empty() && !self.is_down
    }

    /// Whether a vBucket's copy is damaged.
    pub fn contains(&self, vb: u16) -> bool {
        self.is_down || is_in(&self.ranges, vb)
    }

    /// Whether a vBucket's copy cannot be read now, whatever the reason.
    pub fn is_unusable(&self, vb: u16) -> bool {
        self.contains(vb) || is_in(&self.refused, vb)
    }
}

fn ranges(vbuckets: impl IntoIterator<Item = u16>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for vb in vbuckets.into_iter().collect::<BTreeSet<u16>>() {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(vb) => *last = vb,
            _ => ranges.push((vb, vb)),
        }
    }
    ranges
}

fn is_in(ranges: &[(u16, u16)], vb: u16) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&vb))
}

/// What is wrong with a bucket's copies on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wrong {
    /// The bucket.
    pub bucket: String,
    /// The node.
    pub node: NodeId,
    /// Whether the node has the bucket down.
    pub down: bool,
    /// vBuckets whose copies are damaged there.
    pub damaged: Vec<u16>,
    /// Those of them that no node serves, and that none will before an administrator acts.
    pub lost: Vec<u16>,
    /// Those of them that the node serves from what can be read, as no other copy surely has all of it.
    pub at_risk: Vec<u16>,
}

/// The damage that living nodes report, by bucket and node.
pub fn wrongs(view: &View) -> Vec<Wrong> {
    let mut wrongs = Vec::new();
    for (name, bucket) in &view.state.buckets {
        for id in view.state.nodes.keys() {
            let Some(damaged) = view.report(*id).and_then(|report| report.damaged.get(name)) else {
                continue;
            };
            if !damaged.is_down && damaged.ranges.is_empty() {
                continue;
            }
            let vbuckets: Vec<u16> = bucket.vbuckets().filter(|vb| damaged.contains(*vb)).collect();
            let is_lost = |vb: &&u16| {
                let is_open = matches!(bucket.steps.get(vb), Some(Step::Choose { .. }));
                (is_open || bucket.active(**vb) == Some(*id)) && !is_safe(view, name, bucket, **vb)
            };
            let lost = vbuckets.iter().filter(is_lost).copied();
            let (at_risk, lost) = lost.partition(|vb| is_in(&damaged.served, *vb));
            let down = damaged.is_down;
            wrongs.push(Wrong { bucket: name.clone(), node: *id, down, damaged: vbuckets, lost, at_risk });
        }
    }
    wrongs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_small_and_comes_back_as_it_was() {
        let every_second = Damaged::of((0..1024).step_by(2));
        let json = serde_json::to_string(&every_second).expect("JSON");
        assert!(json.len() < 8 << 10, "{} bytes", json.len());
        assert_eq!(serde_json::from_str::<Damaged>(&json).expect("the same"), every_second);
        assert!(every_second.contains(1022) && !every_second.contains(1023));
        let few = Damaged::of([7, 3, 4, 5]);
        assert_eq!(serde_json::to_string(&few).expect("JSON"), r#"{"ranges":[[3,5],[7,7]]}"#);
        assert!(Damaged::of([]).is_empty() && !Damaged::down().is_empty() && Damaged::down().contains(9));
        let newer = r#"{"ranges":[[1,2]],"since":7}"#;
        assert_eq!(serde_json::from_str::<Damaged>(newer).expect("fields of others"), Damaged::of([1, 2]));
    }
}
