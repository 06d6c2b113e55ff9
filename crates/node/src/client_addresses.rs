//! Where clients come from: connections by address, for operators who look for a client that should not be there, or makes
//! too many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

/// Addresses that are remembered, at most. If there are more, those without a connection go first; if each has one, a new
/// address is not remembered.
const MOST_ADDRESSES: usize = 1_024;

/// What is known of the clients of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressCounts {
    /// Connections that it has.
    pub current: u64,
    /// Connections that it has made.
    pub total: u64,
    /// Connections of it that the node closed.
    pub closed_by_node: u64,
    /// When the last of these changed, on the monotonic clock.
    pub changed: Duration,
}

/// All addresses.
#[derive(Debug, Default)]
pub struct ClientAddresses(Mutex<HashMap<IpAddr, AddressCounts>>);

impl ClientAddresses {
    /// A client has connected.
    pub(crate) fn connected(&self, address: IpAddr, now: Duration) {
        let mut all = self.0.lock();
        if all.len() >= MOST_ADDRESSES && !all.contains_key(&address) {
            let idle = all.iter().filter(|(_, counts)| counts.current == 0);
            match idle.min_by_key(|(_, counts)| counts.changed).map(|(idle, _)| *idle) {
                Some(idle) => all.remove(&idle),
                None => return,
            };
        }
        let counts = all.entry(address).or_default();
        counts.current += 1;
        counts.total += 1;
        counts.changed = now;
    }

    /// A connection has ended, by the node or by its client.
    pub(crate) fn disconnected(&self, address: IpAddr, by_node: bool, now: Duration) {
        if let Some(counts) = self.0.lock().get_mut(&address) {
            // One that came while no address could be remembered is not among them.
            counts.current = counts.current.saturating_sub(1);
            counts.closed_by_node += u64::from(by_node);
            counts.changed = now;
        }
    }

    /// All that are remembered, in order.
    pub fn all(&self) -> Vec<(IpAddr, AddressCounts)> {
        let mut all: Vec<_> = self.0.lock().iter().map(|(address, counts)| (*address, *counts)).collect();
        all.sort_unstable_by_key(|(address, _)| *address);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn connections_are_counted_by_address() {
        let addresses = ClientAddresses::default();
        let at = Duration::from_secs;
        addresses.connected(address(1), at(1));
        addresses.connected(address(1), at(2));
        addresses.connected(address(2), at(3));
        addresses.disconnected(address(1), true, at(4));
        addresses.disconnected(address(3), true, at(5));
        let counts = |current, total, closed_by_node, s| AddressCounts {
            current,
            total,
            closed_by_node,
            changed: at(s),
        };
        assert_eq!(addresses.all(), [(address(1), counts(1, 2, 1, 4)), (address(2), counts(1, 1, 0, 3))]);
    }

    #[test]
    fn a_bounded_number_is_remembered_and_who_is_connected_stays() {
        let addresses = ClientAddresses::default();
        addresses.connected(address(0), Duration::ZERO);
        for n in 1..5_000 {
            let now = Duration::from_secs(n.into());
            addresses.connected(address(n), now);
            addresses.disconnected(address(n), false, now);
        }
        let all = addresses.all();
        assert_eq!((all.len(), all[0].0, all[0].1.current), (MOST_ADDRESSES, address(0), 1));
        assert_eq!(all[1].0, address(5_000 - MOST_ADDRESSES as u32 + 1));
        (5_000..10_000).for_each(|n| addresses.connected(address(n), Duration::from_secs(n.into())));
        assert_eq!(addresses.all().len(), MOST_ADDRESSES);
    }
}
