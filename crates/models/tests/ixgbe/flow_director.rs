//! The flow director: perfect filters by fields and hash, signature filters by two hashes.

use bywash_hw::ixgbe::desc::rx;
use bywash_hw::ixgbe::regs::*;

use crate::bench::{Bench, packet};
use crate::{TCP, UDP};

#[test]
fn the_flow_director_steers_drops_and_forgets() {
    let mut bench = Bench::started(4);
    bench.write(&FDIRDIP4M, 0, 0);
    bench.write(&FDIRM, 0, FDIRM::VLANID.mask | FDIRM::VLANP.mask | FDIRM::POOL.mask | FDIRM::FLEX.mask);
    // Of the ports, only the destination's upper byte: masks lie in reverse and inverted.
    bench.write(&FDIRUDPM, 0, 0xff00_ffff);
    let perfect = FDIRCTRL::PBALLOC.with(1) | FDIRCTRL::PERFECT_MATCH.mask | FDIRCTRL::REPORT_STATUS.mask;
    bench.write(&FDIRCTRL, 0, perfect | FDIRCTRL::DROP_QUEUE.with(127));
    assert!(FDIRCTRL::INIT_DONE.is_set(bench.read(&FDIRCTRL, 0)));
    // The packet buffer must have been made smaller before.
    let why = "FDIRCTRL[0]: RXPBSIZE has 512 KiB, and filters take 64 KiB of the same 512";
    assert_eq!(bench.broken(), [why]);
    bench.write(&RXPBSIZE, 0, RXPBSIZE::SIZE.with(512 - 64));
    bench.write(&FDIRCTRL, 0, perfect | FDIRCTRL::DROP_QUEUE.with(127));
    bench.write(&FDIRHKEY, 0, 0x3dad_14e2);
    bench.write(&FDIRIPSA, 0, u32::from_le_bytes([10, 0, 0, 1]));
    bench.write(&FDIRIPDA, 0, u32::from_le_bytes([10, 0, 0, 2]));
    bench.write(&FDIRPORT, 0, FDIRPORT::DESTINATION.with(0x1200));
    bench.write(&FDIRHASH, 0, FDIRHASH::INDEX.with(5) | 0x3bb);
    let add =
        FDIRCMD::CMD.with(1) | FDIRCMD::FILTER_UPDATE.mask | FDIRCMD::L4TYPE.with(1) | FDIRCMD::LAST.mask;
    bench.write(&FDIRCMD, 0, add | FDIRCMD::QUEUE_EN.mask | FDIRCMD::RX_QUEUE.with(3));
    assert_eq!(FDIRCMD::CMD.of(bench.read(&FDIRCMD, 0)), 0);
    assert_eq!(FDIRFREE::FREE.of(bench.read(&FDIRFREE, 0)), 2045);

    bench.arrive(&packet(UDP, (7, 0x12ff), 40));
    assert_eq!(bench.filled(4), [3]);
    let words = bench.rx_words(3, 0);
    assert!(rx::FLM.is_set(words[2]));
    assert_eq!((rx::FILTER_INDEX.of(words[1]), rx::FILTER_HASH.of(words[1])), (5, 0x3bb));
    bench.arrive(&packet(UDP, (7, 0x13ff), 40));
    assert_eq!(bench.filled(4), [0, 3]);
    assert_eq!((bench.read(&FDIRMATCH, 0), bench.read(&FDIRMISS, 0), bench.read(&FDIRMISS, 0)), (1, 1, 0));

    bench.write(&FDIRCMD, 0, add | FDIRCMD::QUEUE_EN.mask | FDIRCMD::DROP.mask);
    bench.arrive(&packet(UDP, (7, 0x1200), 40));
    assert_eq!(rx::DD.of(bench.rx_words(3, 1)[2]), 0);
    bench.write(&FDIRCMD, 0, FDIRCMD::CMD.with(3));
    assert!(FDIRCMD::FILTER_VALID.is_set(bench.read(&FDIRCMD, 0)));
    bench.write(&FDIRCMD, 0, FDIRCMD::CMD.with(2));
    bench.write(&FDIRCMD, 0, FDIRCMD::CMD.with(3));
    assert!(!FDIRCMD::FILTER_VALID.is_set(bench.read(&FDIRCMD, 0)));
    assert_eq!((bench.read(&FDIRUSTAT, 0), bench.read(&FDIRMATCH, 0)), (0x0001_0001, 1));
    assert_eq!(bench.broken(), Vec::<String>::new());

    bench.write(&FDIRHASH, 0, FDIRHASH::INDEX.with(5) | 0x3ba);
    bench.write(&FDIRCMD, 0, add | FDIRCMD::QUEUE_EN.mask | FDIRCMD::RX_QUEUE.with(3));
    let why = "bucket hash 0x03ba, but the filter's fields have 0x43bb: no packet will match it";
    assert_eq!(bench.broken(), [format!("FDIRHASH[0]: {why}")]);
    bench.arrive(&packet(UDP, (7, 0x1200), 40));
    assert_eq!(bench.read(&FDIRMATCH, 0), 0);
}

#[test]
fn signature_filters_are_found_by_both_hashes() {
    let mut bench = Bench::started(4);
    bench.write(&RXPBSIZE, 0, RXPBSIZE::SIZE.with(512 - 64));
    // Without keys all packets have the same hashes.
    bench.write(&FDIRCTRL, 0, FDIRCTRL::PBALLOC.with(1) | FDIRCTRL::FLEX_OFFSET.with(6));
    assert_eq!(FDIRFREE::FREE.of(bench.read(&FDIRFREE, 0)), 8190);
    let add = FDIRCMD::CMD.with(1) | FDIRCMD::FILTER_UPDATE.mask | FDIRCMD::QUEUE_EN.mask;
    for queue in [1, 2] {
        bench.write(&FDIRHASH, 0, 0);
        bench.write(&FDIRCMD, 0, add | FDIRCMD::RX_QUEUE.with(queue));
    }
    assert_eq!(FDIRFREE::FREE.of(bench.read(&FDIRFREE, 0)), 8189);
    bench.arrive(&packet(TCP, (7, 8), 40));
    assert_eq!(bench.filled(4), [2]);
    // With them this packet's signature is another.
    bench.write(&FDIRSKEY, 0, 0x174d_3614);
    bench.arrive(&packet(TCP, (7, 8), 40));
    assert_eq!(bench.filled(4), [0, 2]);
    assert_eq!((bench.read(&FDIRMATCH, 0), bench.read(&FDIRMISS, 0)), (1, 1));
    assert_eq!(bench.broken(), Vec::<String>::new());
}
