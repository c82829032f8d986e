//! Random expressions and packets that have something to do with each other.

pub(crate) mod expression;
pub(crate) mod packet;

/// Random numbers that are the same in each run (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

// What expressions ask for and packets have.
pub(crate) const V4: [[u8; 4]; 5] =
    [[10, 0, 0, 1], [10, 0, 0, 2], [10, 1, 2, 3], [192, 168, 1, 255], [224, 0, 0, 5]];
pub(crate) const V6: [&str; 6] =
    ["fe80::1", "2001:db8::1", "2001:db8:0:1::2", "ff02::1", "fe80:0:100::1", "fe80::100:0:0:1"];
pub(crate) const MACS: [[u8; 6]; 4] =
    [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0x01, 0, 0x5e, 0, 0, 5], [0xff; 6]];
pub(crate) const PORTS: [u16; 5] = [22, 53, 80, 443, 6081];
pub(crate) const PROTOCOLS: [u8; 14] = [1, 2, 6, 17, 132, 58, 50, 9, 103, 112, 44, 0, 60, 43];
pub(crate) const VLANS: [u16; 3] = [1, 5, 4095];
pub(crate) const LABELS: [u32; 3] = [16, 100, 0xf_ffff];
pub(crate) const SESSIONS: [u16; 2] = [1, 0x1234];
pub(crate) const VNIS: [u32; 2] = [5, 0xff_ffff];
