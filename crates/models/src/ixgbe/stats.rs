//! What the MAC and the queues count. Lengths include the check sequence, as on the wire.

use bywash_hw::ixgbe::regs;
use bywash_hw::reg::Register;

use super::file::File;
use super::parse::Parsed;

/// Bytes of the check sequence.
pub(super) const FCS: usize = 4;

/// The counters by size: 64, 65 to 127, 128 to 255, 256 to 511, 512 to 1023, more.
const RECEIVED: [&Register; 6] =
    [&regs::PRC64, &regs::PRC127, &regs::PRC255, &regs::PRC511, &regs::PRC1023, &regs::PRC1522];
const TRANSMITTED: [&Register; 6] =
    [&regs::PTC64, &regs::PTC127, &regs::PTC255, &regs::PTC511, &regs::PTC1023, &regs::PTC1522];

fn by_size(counters: &[&'static Register; 6], bytes: u32) -> &'static Register {
    let at = [64, 127, 255, 511, 1023].iter().position(|most| bytes <= *most);
    counters[at.unwrap_or(5)]
}

fn bytes(frame: &[u8]) -> u32 {
    count(frame.len() + FCS)
}

fn count(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Every frame that arrives, good or bad.
pub(super) fn arrived(file: &mut File, frame: &[u8]) {
    file.count(&regs::TPR, 0, 1);
    file.count_36(&regs::TORL, &regs::TORH, 0, bytes(frame));
}

/// What a frame of so many bytes, check sequence included, is counted as when it is bad; each as one thing only.
pub(super) fn bad(bytes: usize, longest: usize, check_good: bool) -> Option<&'static Register> {
    match (bytes < 64, bytes > longest, check_good) {
        (true, _, true) => Some(&regs::RUC),
        (true, _, false) => Some(&regs::RFC),
        (_, true, true) => Some(&regs::ROC),
        (_, true, false) => Some(&regs::RJC),
        (_, _, false) => Some(&regs::CRCERRS),
        (_, _, true) => None,
    }
}

/// A good frame with a wrong checksum in it, or several.
pub(super) fn checked(file: &mut File, parsed: &Parsed) {
    if [parsed.ip_checksum_good, parsed.l4_checksum_good].contains(&Some(false)) {
        file.count(&regs::XEC, 0, 1);
    }
}

/// A good frame, before filtering.
pub(super) fn good(file: &mut File, frame: &[u8]) {
    file.count(&regs::RXNFGPC, 0, 1);
    file.count_36(&regs::RXNFGBCL, &regs::RXNFGBCH, 0, bytes(frame));
}

/// A good frame that passed the filters.
pub(super) fn received(file: &mut File, frame: &[u8]) {
    file.count(&regs::GPRC, 0, 1);
    file.count_36(&regs::GORCL, &regs::GORCH, 0, bytes(frame));
    file.count(by_size(&RECEIVED, bytes(frame)), 0, 1);
    count_cast(file, frame, &regs::BPRC, &regs::MPRC);
}

/// A frame that was sent.
pub(super) fn transmitted(file: &mut File, frame: &[u8]) {
    file.count(&regs::GPTC, 0, 1);
    file.count(&regs::TPT, 0, 1);
    file.count_36(&regs::GOTCL, &regs::GOTCH, 0, bytes(frame));
    file.count(by_size(&TRANSMITTED, bytes(frame)), 0, 1);
    count_cast(file, frame, &regs::BPTC, &regs::MPTC);
}

fn count_cast(file: &mut File, frame: &[u8], broadcast: &Register, multicast: &Register) {
    match frame.get(..6) {
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => file.count(broadcast, 0, 1),
        Some([first, ..]) if first & 1 != 0 => file.count(multicast, 0, 1),
        _ => {}
    }
}

/// A packet was given to the host by receive queue `queue`.
pub(super) fn delivered(file: &mut File, queue: u32, length: usize) {
    let counter = counter(file, &regs::RQSMR, queue);
    file.count(&regs::QPRC, counter, 1);
    file.count_36(&regs::QBRC_L, &regs::QBRC_H, counter, count(length));
    file.count(&regs::RXDGPC, 0, 1);
    file.count_36(&regs::RXDGBCL, &regs::RXDGBCH, 0, count(length));
}

/// A packet was dropped for want of descriptors in receive queue `queue`.
pub(super) fn dropped(file: &mut File, queue: u32) {
    let counter = counter(file, &regs::RQSMR, queue);
    file.count(&regs::QPRDC, counter, 1);
}

/// A packet was taken from transmit queue `queue`.
pub(super) fn taken(file: &mut File, queue: u32, length: usize) {
    let counter = counter(file, &regs::TQSM, queue);
    file.count(&regs::QPTC, counter, 1);
    file.count_36(&regs::QBTC_L, &regs::QBTC_H, counter, count(length));
    file.count(&regs::TXDGPC, 0, 1);
    file.count_36(&regs::TXDGBCL, &regs::TXDGBCH, 0, count(length));
}

/// Which of the sixteen counters a queue counts in: a byte of the map for each.
fn counter(file: &File, map: &Register, queue: u32) -> u32 {
    file.get(map, queue / 4) >> (queue % 4 * 8) & 0xf
}
