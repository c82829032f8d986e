//! The VLANs that a virtual function has asked for. A host can put a function into one more without its knowledge: the tag of that is
//! the host's, not the packets'.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A bit for each of 4096 VLANs: looked up by queues, changed by the port.
#[derive(Debug)]
pub(crate) struct Vlans([AtomicU64; 64]);

impl Vlans {
    /// These.
    pub(crate) fn new(vlans: &[u16]) -> Self {
        let all = Self([const { AtomicU64::new(0) }; 64]);
        all.set(vlans);
        all
    }

    /// These from now on.
    pub(crate) fn set(&self, vlans: &[u16]) {
        for (first, word) in (0..).step_by(64).zip(&self.0) {
            let bits = vlans.iter().filter_map(|vlan| vlan.checked_sub(first)).filter(|bit| *bit < 64);
            word.store(bits.fold(0, |word, bit| word | 1 << bit), Relaxed);
        }
    }

    /// Whether a tag, whatever its priority, is of one of them.
    pub(crate) fn has(&self, tag: u16) -> bool {
        let vlan = usize::from(tag & 0xfff);
        self.0[vlan / 64].load(Relaxed) >> (vlan % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_of_a_vlan_whatever_its_priority() {
        let vlans = Vlans::new(&[0, 63, 64, 4094]);
        let has = |tags: &[u16]| tags.iter().map(|tag| vlans.has(*tag)).collect::<Vec<_>>();
        assert_eq!(has(&[0, 1, 63, 64, 65, 4094, 4095]), [true, false, true, true, false, true, false]);
        assert_eq!(has(&[0xe040, 0xefff]), [true, false]);
        vlans.set(&[1]);
        assert_eq!(has(&[0, 1, 63, 64, 4094]), [false, true, false, false, false]);
    }
}
