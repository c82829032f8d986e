//! By which queue each flow comes, as far as the kernel's driver tells.
//!
//! It is what the NIC should do, not what is certain. The key, the table and n-tuple rules are the administrator's at any time
//! (`ethtool -X`, `-N`); ixgbe's flow director learns flows from what the kernel sends, by which packets of sockets with copies
//! go as well, and has their answers come by the queue of the same number. And drivers hash what they do not tell: that it is in the
//! order of Microsoft's description none tells, and mlx5 has its NICs hash symmetrically, of which it told nothing before Linux's change
//! "net/mlx5e: Symmetric OR-XOR RSS hash control" of 2025. So whoever goes by this has to look at each packet all the same; where it is
//! wrong, that is more work with the same result.

use bywash_port::{Certain, RssSpread};
use bywash_sys::ethtool::{Ethtool, FlowType, Rss};

/// How an interface spreads flows over all its `queues`. `None` where its driver tells of another hash than Toeplitz's, of other
/// fields of TCP than addresses and ports, or of nothing.
pub(super) fn told(interface: &str, queues: usize) -> Option<RssSpread> {
    let ethtool = Ethtool::open().ok()?;
    let hashes = |kind| ethtool.hashes_flows(interface, kind).unwrap_or(false);
    let spread = of(&ethtool.rss(interface).ok()?, queues)?;
    (hashes(FlowType::TcpV4) && hashes(FlowType::TcpV6)).then_some(spread)
}

/// The same of a table, where it names no other queues. Of a longer key, as that of i40e with 52 bytes, the hash of addresses and
/// ports has no use for the rest.
fn of(rss: &Rss, queues: usize) -> Option<RssSpread> {
    let key = rss.key.first_chunk().filter(|_| rss.is_toeplitz)?;
    let ours = |queue: &u32| u16::try_from(*queue).ok().filter(|queue| usize::from(*queue) < queues);
    let table = rss.table.iter().map(ours).collect::<Option<Vec<u16>>>()?;
    RssSpread::new(*key, table, Certain::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rss(entries: u32, key: usize) -> Rss {
        Rss { table: (0..entries).map(|i| i % 4).collect(), key: vec![7; key], is_toeplitz: true }
    }

    #[test]
    fn what_a_driver_tells_is_how_it_spreads() {
        // The 82599, the X550, i40e, mlx5 with four channels.
        for (entries, key) in [(128, 40), (512, 40), (512, 52), (8, 40)] {
            let spread = of(&rss(entries, key), 4).unwrap();
            assert_eq!((spread.key(), spread.table().len()), (&[7; 40], entries as usize));
            assert_eq!((&spread.table()[..4], spread.certain()), (&[0, 1, 2, 3][..], Certain::Nothing));
        }
    }

    #[test]
    fn what_is_not_understood_is_nothing() {
        for (why, rss, queues) in [
            ("another hash", Rss { is_toeplitz: false, ..rss(128, 40) }, 4),
            ("no key, as igb", rss(128, 0), 4),
            ("a key for IPv4 alone", rss(128, 16), 4),
            ("no table, as veth", rss(0, 40), 4),
            ("a table by another rule than the hash's low bits", rss(100, 40), 4),
            ("queues that the port has not", rss(128, 40), 3),
            ("a queue beyond all", Rss { table: vec![1 << 16; 128], ..rss(128, 40) }, 1 << 17),
        ] {
            assert_eq!(of(&rss, queues), None, "{why}");
        }
    }
}
