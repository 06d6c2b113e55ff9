//! How many KV connections an address may have, if there is a limit: each connection holds a place until it ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::login_throttle::network;

/// The places of all addresses.
pub struct AddressPlaces {
    /// Places of each address; `None`: no limit, and nothing is counted.
    most: Option<usize>,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// A place. Dropping it gives it back.
pub struct Place(Option<(Arc<AddressPlaces>, IpAddr)>);

impl AddressPlaces {
    /// With this number of places for each address.
    pub fn new(most: Option<usize>) -> AddressPlaces {
        AddressPlaces { most, taken: Mutex::default() }
    }

    /// A place for a connection from `address`; `None` if it has all that it may have.
    pub fn take(self: &Arc<AddressPlaces>, address: IpAddr) -> Option<Place> {
        let Some(most) = self.most else { return Some(Place(None)) };
        let address = network(address);
        let mut all = self.taken.lock();
        let taken = all.entry(address).or_insert(0);
        if *taken >= most {
            return None;
        }
        *taken += 1;
        Some(Place(Some((Arc::clone(self), address))))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((places, address)) = self.0.take() else { return };
        let mut all = places.taken.lock();
        if let Some(taken) = all.get_mut(&address) {
            *taken -= 1;
            if *taken == 0 {
                all.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_its_places_back() {
        let places = Arc::new(AddressPlaces::new(Some(2)));
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        for _ in 0..3 {
            let first = [places.take(a).expect("a place"), places.take(a).expect("a place")];
            assert!(places.take(a).is_none());
            drop(places.take(b).expect("another address has its own"));
            drop(first);
            assert!(places.taken.lock().is_empty(), "nothing is kept of who has gone");
        }
        let unlimited = Arc::new(AddressPlaces::new(None));
        let all: Vec<Place> = (0..10_000).filter_map(|_| unlimited.take(a)).collect();
        assert_eq!((all.len(), unlimited.taken.lock().len()), (10_000, 0));
    }
}
