//! What was found for two addresses that speak with each other, kept for their next connection.

use crate::Flow;

/// Pairs that are remembered, a power of two.
const PAIRS: usize = 64;

/// A place for each remainder of the addresses' sum: a pair that needs a taken place takes it. Who makes pairs meet makes us
/// find again what is forgotten, and no more.
#[derive(Debug)]
pub(crate) struct Pairs<T>(Box<[Option<(Flow, T)>; PAIRS]>);

impl<T: Copy> Pairs<T> {
    pub(crate) fn new() -> Self {
        Self(Box::new([None; PAIRS]))
    }

    /// What was kept for the addresses of a flow, whatever its ports.
    #[inline]
    pub(crate) fn get(&self, flow: &Flow) -> Option<&T> {
        let (known, kept) = self.0[place(flow)].as_ref()?;
        (known.local == flow.local && known.remote == flow.remote).then_some(kept)
    }

    /// Keeps something for the addresses of a flow.
    pub(crate) fn keep(&mut self, flow: &Flow, what: T) {
        self.0[place(flow)] = Some((*flow, what));
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0.fill(None);
    }
}

#[inline]
fn place(flow: &Flow) -> usize {
    (flow.local.bits().wrapping_add(flow.remote.bits()) & (PAIRS as u128 - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn a_pair_is_known_by_both_its_addresses_until_another_takes_its_place() {
        let flow = |local: u32, remote: u32, local_port| Flow {
            local: Address::from(std::net::Ipv4Addr::from_bits(local)),
            remote: Address::from(std::net::Ipv4Addr::from_bits(remote)),
            local_port,
            remote_port: 7,
        };
        let mut pairs = Pairs::new();
        pairs.keep(&flow(1, 2, 80), 'a');
        assert_eq!(pairs.get(&flow(1, 2, 81)), Some(&'a'), "ports do not matter");
        assert_eq!(
            [pairs.get(&flow(2, 1, 80)), pairs.get(&flow(1, 2 + 64, 80))],
            [None; 2],
            "they share its place"
        );
        pairs.keep(&flow(1, 2 + 64, 80), 'b');
        assert_eq!((pairs.get(&flow(1, 2, 80)), pairs.get(&flow(1, 2 + 64, 80))), (None, Some(&'b')));
        pairs.clear();
        assert_eq!(pairs.get(&flow(1, 2 + 64, 80)), None);
    }
}
