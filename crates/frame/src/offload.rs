//! What a packet carries besides its bytes: the work a NIC has done, or is asked to do.
//!
//! It is plain integers of 4 and 8 bytes without gaps, not enums and options: it is made and moved with every packet, and
//! the compiler then writes and reads it as whole words.

use std::fmt;
use std::num::NonZeroU16;

/// What is known, or wanted, of the checksum above the network layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody has looked. On transmit: the bytes go as they are.
    #[default]
    Unknown,
    /// The receiving side verified it.
    Valid,
    /// The receiving side found it wrong.
    Bad,
    /// Only the pseudo-header's sum is there: the ones' complement sum from `start` to the packet's end goes into
    /// the two bytes at `start + offset` (Linux's `CHECKSUM_PARTIAL`, virtio's `NEEDS_CSUM`).
    Partial {
        /// First byte summed, from the packet's first byte.
        start: u16,
        /// Where the checksum goes, from `start`.
        offset: u16,
    },
}

/// What a super-segment is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either: each piece is a datagram of its own.
    Udp,
}

/// A packet that stands for several: transport payload to be cut (TSO, USO), or that was put together (GRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// What is cut.
    pub kind: SegmentationKind,
    /// Bytes of payload in each piece but the last.
    pub size: NonZeroU16,
}

/// Everything a packet carries besides its bytes.
// What is not there is 0 in its field as well as in the flags, but for the hash.
#[derive(Clone, Copy, Default)]
pub struct Offload {
    timestamp: u64,
    /// The start, and 16 bits higher the offset.
    checksum: u32,
    /// The VLAN tag, and 16 bits higher the segment's size; no super-segment has 0 there.
    vlan_and_size: u32,
    /// The flags below, and 32 bits higher the hash: any value, when they say that there is none. One word, as Intel's NICs
    /// write it.
    flags_and_hash: u64,
}

// What the flags say. No more than one of the three about the checksum is set, nor of those about segmentation.
// Two are where Intel's NICs have them in a descriptor, because they are made from that for every packet: that of a valid
// checksum ("was looked at"), and the kind of hash, which is 0 when there is none.
const HASH: u32 = 0xf;
const CWR_ON_EACH: u32 = 1 << 4;
const CHECKSUM_VALID: u32 = 1 << 5;
const CHECKSUM_BAD: u32 = 1 << 6;
const TIMESTAMP: u32 = 1 << 7;
// Those that ask for work lie in one byte: they are looked at together, of every packet.
const CHECKSUM_PARTIAL: u32 = 1 << 8;
const SEGMENT_TCP4: u32 = 1 << 9;
const SEGMENT_TCP6: u32 = 1 << 10;
const SEGMENT_UDP: u32 = 1 << 11;
const VLAN: u32 = 1 << 12;
/// Above the flags stands how many bytes were cut off.
const CUT_SHIFT: u32 = 13;

/// A hash of some kind.
const ANY_HASH: u32 = 1;

const CHECKSUM: u32 = CHECKSUM_VALID | CHECKSUM_BAD | CHECKSUM_PARTIAL;
const SEGMENT: u32 = SEGMENT_TCP4 | SEGMENT_TCP6 | SEGMENT_UDP;

impl Offload {
    /// What a NIC says of most packets: their hash and its kind, of which the lowest four bits count and 0 is none; and whether it
    /// verified the checksum.
    #[inline]
    pub fn received(hash: u32, kind: u32, is_valid: bool) -> Self {
        let valid = if is_valid { CHECKSUM_VALID } else { 0 };
        let flags_and_hash = u64::from(hash) << 32 | u64::from(valid | kind & HASH);
        Self { flags_and_hash, ..Self::default() }
    }

    /// When the packet was received, in nanoseconds of `CLOCK_REALTIME`, if the port knows.
    #[inline]
    pub fn timestamp(&self) -> Option<u64> {
        self.has(TIMESTAMP).then_some(self.timestamp)
    }

    /// Sets [`Offload::timestamp`].
    #[inline]
    pub fn set_timestamp(&mut self, timestamp: Option<u64>) {
        self.put(TIMESTAMP, if timestamp.is_some() { TIMESTAMP } else { 0 });
        self.timestamp = timestamp.unwrap_or_default();
    }

    /// How many bytes the packet had behind those that are here: whoever captured it kept only its beginning.
    #[inline]
    pub fn cut(&self) -> u32 {
        self.flags() >> CUT_SHIFT
    }

    /// Sets [`Offload::cut`]; to half a MiB at most, which no packet has.
    #[inline]
    pub fn set_cut(&mut self, bytes: u32) {
        let bytes = bytes.min(u32::MAX >> CUT_SHIFT);
        self.put(u32::MAX << CUT_SHIFT, bytes << CUT_SHIFT);
    }

    /// The receive hash (RSS), if the port has one.
    #[inline]
    pub fn hash(&self) -> Option<u32> {
        self.has(HASH).then_some((self.flags_and_hash >> 32) as u32)
    }

    /// Sets [`Offload::hash`].
    #[inline]
    pub fn set_hash(&mut self, hash: Option<u32>) {
        self.put(HASH, if hash.is_some() { ANY_HASH } else { 0 });
        self.flags_and_hash = u64::from(hash.unwrap_or_default()) << 32 | u64::from(self.flags());
    }

    /// The checksum above the network layer.
    #[inline]
    pub fn checksum(&self) -> Checksum {
        match self.flags() & CHECKSUM {
            CHECKSUM_VALID => Checksum::Valid,
            CHECKSUM_BAD => Checksum::Bad,
            CHECKSUM_PARTIAL => Checksum::Partial { start: low(self.checksum), offset: high(self.checksum) },
            _ => Checksum::Unknown,
        }
    }

    /// Sets [`Offload::checksum`].
    #[inline]
    pub fn set_checksum(&mut self, checksum: Checksum) {
        let (flag, start, offset) = match checksum {
            Checksum::Unknown => (0, 0, 0),
            Checksum::Valid => (CHECKSUM_VALID, 0, 0),
            Checksum::Bad => (CHECKSUM_BAD, 0, 0),
            Checksum::Partial { start, offset } => (CHECKSUM_PARTIAL, start, offset),
        };
        self.put(CHECKSUM, flag);
        self.checksum = joined(start, offset);
    }

    /// Says that `bytes` were put in front of the packet: a [`Checksum::Partial`] starts so much later.
    #[inline]
    pub fn shift_checksum(&mut self, bytes: u16) {
        if self.has(CHECKSUM_PARTIAL) {
            // A start that no packet reaches is refused by whoever finishes the checksum.
            self.checksum = joined(low(self.checksum).saturating_add(bytes), high(self.checksum));
        }
    }

    /// Set on a super-segment.
    #[inline]
    pub fn segmentation(&self) -> Option<Segmentation> {
        let size = NonZeroU16::new(high(self.vlan_and_size))?;
        let kind = match self.flags() & SEGMENT {
            SEGMENT_TCP6 => SegmentationKind::Tcp6,
            SEGMENT_UDP => SegmentationKind::Udp,
            _ => SegmentationKind::Tcp4,
        };
        Some(Segmentation { kind, size })
    }

    /// Sets [`Offload::segmentation`], and that [`Offload::cwr_on_each`] is not so.
    #[inline]
    pub fn set_segmentation(&mut self, segmentation: Option<Segmentation>) {
        let (flag, size) = match segmentation {
            None => (0, 0),
            Some(Segmentation { kind: SegmentationKind::Tcp4, size }) => (SEGMENT_TCP4, size.get()),
            Some(Segmentation { kind: SegmentationKind::Tcp6, size }) => (SEGMENT_TCP6, size.get()),
            Some(Segmentation { kind: SegmentationKind::Udp, size }) => (SEGMENT_UDP, size.get()),
        };
        self.put(SEGMENT | CWR_ON_EACH, flag);
        self.vlan_and_size = joined(low(self.vlan_and_size), size);
    }

    /// Whether TCP's flag CWR, if a super-segment has it, is each piece's: with AccECN it is a bit of a counter that all of them tell
    /// (RFC 9768). Otherwise it is the first one's alone (RFC 3168, 6.1.2).
    #[inline]
    pub fn cwr_on_each(&self) -> bool {
        self.has(CWR_ON_EACH)
    }

    /// Sets [`Offload::cwr_on_each`].
    #[inline]
    pub fn set_cwr_on_each(&mut self, on_each: bool) {
        self.put(CWR_ON_EACH, if on_each { CWR_ON_EACH } else { 0 });
    }

    /// VLAN tag control information taken out of the packet, or to be put in.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.has(VLAN).then_some(low(self.vlan_and_size))
    }

    /// Sets [`Offload::vlan`].
    #[inline]
    pub fn set_vlan(&mut self, vlan: Option<u16>) {
        self.put(VLAN, if vlan.is_some() { VLAN } else { 0 });
        self.vlan_and_size = joined(vlan.unwrap_or_default(), high(self.vlan_and_size));
    }

    /// Whether the packet's bytes cannot go as they are: a checksum is to be finished, payload to be cut, or a tag to
    /// be put in.
    #[inline]
    pub fn asks_for_work(&self) -> bool {
        self.has(CHECKSUM_PARTIAL | SEGMENT | VLAN)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the other half is the hash")]
    fn flags(&self) -> u32 {
        self.flags_and_hash as u32
    }

    #[inline]
    fn has(&self, flags: u32) -> bool {
        self.flags() & flags != 0
    }

    #[inline]
    fn put(&mut self, mask: u32, flags: u32) {
        self.flags_and_hash = self.flags_and_hash & !u64::from(mask) | u64::from(flags);
    }
}

#[inline]
fn joined(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the other half is what `high` gives")]
fn low(both: u32) -> u16 {
    both as u16
}

#[inline]
fn high(both: u32) -> u16 {
    low(both >> 16)
}

/// What is there counts, not how it is kept.
impl PartialEq for Offload {
    fn eq(&self, other: &Self) -> bool {
        let meaning = |of: &Self| {
            let cutting = (of.segmentation(), of.cwr_on_each());
            (of.timestamp(), of.hash(), of.checksum(), cutting, of.vlan(), of.cut())
        };
        meaning(self) == meaning(other)
    }
}

impl Eq for Offload {}

/// Says what is there, not how it is kept.
impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offload")
            .field("timestamp", &self.timestamp())
            .field("hash", &self.hash())
            .field("checksum", &self.checksum())
            .field("segmentation", &self.segmentation())
            .field("cwr_on_each", &self.cwr_on_each())
            .field("vlan", &self.vlan())
            .field("cut", &self.cut())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One call of a setter.
    #[derive(Clone, Copy, Debug)]
    enum Set {
        Timestamp(Option<u64>),
        Hash(Option<u32>),
        Checksum(Checksum),
        Segmentation(Option<Segmentation>),
        CwrOnEach(bool),
        Vlan(Option<u16>),
        Cut(u32),
    }

    fn checksum() -> impl Strategy<Value = Checksum> {
        prop_oneof![
            Just(Checksum::Unknown),
            Just(Checksum::Valid),
            Just(Checksum::Bad),
            any::<(u16, u16)>().prop_map(|(start, offset)| Checksum::Partial { start, offset }),
        ]
    }

    fn segmentation() -> impl Strategy<Value = Segmentation> {
        let kinds = [SegmentationKind::Tcp4, SegmentationKind::Tcp6, SegmentationKind::Udp];
        (prop::sample::select(kinds.to_vec()), any::<NonZeroU16>())
            .prop_map(|(kind, size)| Segmentation { kind, size })
    }

    fn set() -> impl Strategy<Value = Set> {
        prop_oneof![
            any::<Option<u64>>().prop_map(Set::Timestamp),
            any::<Option<u32>>().prop_map(Set::Hash),
            checksum().prop_map(Set::Checksum),
            prop::option::of(segmentation()).prop_map(Set::Segmentation),
            any::<bool>().prop_map(Set::CwrOnEach),
            any::<Option<u16>>().prop_map(Set::Vlan),
            (0..1_u32 << 19).prop_map(Set::Cut),
        ]
    }

    /// What an [`Offload`] means, kept the plain way.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Meaning {
        timestamp: Option<u64>,
        hash: Option<u32>,
        checksum: Checksum,
        segmentation: Option<Segmentation>,
        cwr_on_each: bool,
        vlan: Option<u16>,
        cut: u32,
    }

    impl Meaning {
        fn of(offload: &Offload) -> Self {
            Self {
                timestamp: offload.timestamp(),
                hash: offload.hash(),
                checksum: offload.checksum(),
                segmentation: offload.segmentation(),
                cwr_on_each: offload.cwr_on_each(),
                vlan: offload.vlan(),
                cut: offload.cut(),
            }
        }

        fn set(&mut self, offload: &mut Offload, set: Set) {
            match set {
                Set::Timestamp(value) => {
                    self.timestamp = value;
                    offload.set_timestamp(value);
                }
                Set::Hash(value) => {
                    self.hash = value;
                    offload.set_hash(value);
                }
                Set::Checksum(value) => {
                    self.checksum = value;
                    offload.set_checksum(value);
                }
                Set::Segmentation(value) => {
                    (self.segmentation, self.cwr_on_each) = (value, false);
                    offload.set_segmentation(value);
                }
                Set::CwrOnEach(value) => {
                    self.cwr_on_each = value;
                    offload.set_cwr_on_each(value);
                }
                Set::Vlan(value) => {
                    self.vlan = value;
                    offload.set_vlan(value);
                }
                Set::Cut(value) => {
                    self.cut = value;
                    offload.set_cut(value);
                }
            }
        }

        fn asks_for_work(&self) -> bool {
            matches!(self.checksum, Checksum::Partial { .. })
                || self.segmentation.is_some()
                || self.vlan.is_some()
        }
    }

    proptest! {
        /// What is set is what is read, everything else stays, and how it came to be so does not show.
        #[test]
        fn each_part_is_read_as_it_was_set_and_leaves_the_others_alone(
            sets in prop::collection::vec(set(), 1..30),
        ) {
            let (mut meaning, mut offload) = (Meaning::default(), Offload::default());
            prop_assert_eq!(Meaning::of(&offload), meaning);
            for set in sets {
                meaning.set(&mut offload, set);
                prop_assert_eq!(Meaning::of(&offload), meaning);
                prop_assert_eq!(offload.asks_for_work(), meaning.asks_for_work());
            }
            let mut at_once = Offload::default();
            at_once.set_cut(meaning.cut);
            at_once.set_vlan(meaning.vlan);
            at_once.set_segmentation(meaning.segmentation);
            at_once.set_cwr_on_each(meaning.cwr_on_each);
            at_once.set_checksum(meaning.checksum);
            at_once.set_hash(meaning.hash);
            at_once.set_timestamp(meaning.timestamp);
            prop_assert_eq!(at_once, offload);
        }
    }

    #[test]
    fn what_a_nic_says_at_once_is_what_it_says_part_by_part() {
        for (hash, kind, is_valid) in [(9, 0, false), (0, 0x10, true), (7, 1, false), (0, 8, true)] {
            let mut offload = Offload::default();
            offload.set_hash((kind & 0xf != 0).then_some(hash));
            offload.set_checksum(if is_valid { Checksum::Valid } else { Checksum::Unknown });
            assert_eq!(Offload::received(hash, kind, is_valid), offload);
        }
    }

    #[test]
    fn only_a_partial_checksum_is_shifted() {
        let mut offload = Offload::default();
        for (before, after) in [
            (Checksum::Valid, Checksum::Valid),
            (Checksum::Unknown, Checksum::Unknown),
            (Checksum::Partial { start: 7, offset: 6 }, Checksum::Partial { start: 27, offset: 6 }),
            (
                Checksum::Partial { start: 65_530, offset: 6 },
                Checksum::Partial { start: u16::MAX, offset: 6 },
            ),
        ] {
            offload.set_checksum(before);
            offload.shift_checksum(20);
            assert_eq!(offload.checksum(), after);
        }
    }

    #[test]
    fn debug_says_what_it_means() {
        let mut offload = Offload::default();
        offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
        offload.set_vlan(Some(7));
        let expected = "Offload { timestamp: None, hash: None, checksum: Partial { start: 34, offset: 6 }, \
                        segmentation: None, cwr_on_each: false, vlan: Some(7), cut: 0 }";
        assert_eq!(format!("{offload:?}"), expected);
    }
}
