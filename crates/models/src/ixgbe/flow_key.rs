//! What the flow director compares of a packet and of a filter, and the hashes by which it finds a filter.
//!
//! A perfect filter is looked for in the bucket of its hash only, and a signature filter is nothing but two hashes: so
//! software that computes them wrongly has filters that never match. The stream that is hashed, and how, is as in Linux's
//! `ixgbe_82599.c`, which also computes the hashes that the tests in guests compare with.

use bywash_hw::ixgbe::regs::{self, FDIRCMD, FDIRCTRL, FDIRM, FDIRPORT, FDIRVLAN};

use super::file::File;
use super::parse::{Addresses, Parsed, SCTP, TCP, UDP};

/// The fields, as numbers in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    /// As FDIRCMD has it: transport in two bits, IPv6 above.
    kind: u32,
    pool: u32,
    vlan: u32,
    /// IPv6 addresses are folded: they are hashed, not compared.
    source: u32,
    destination: u32,
    /// Source above destination.
    ports: u32,
    /// Two bytes of the packet, from the word on that FDIRCTRL names.
    flexible: u32,
}

/// Values of FDIRCMD.L4TYPE.
const KIND_UDP: u32 = 1;
const KIND_TCP: u32 = 2;
const KIND_SCTP: u32 = 3;
const KIND_IPV6: u32 = 4;

impl Key {
    /// The key of a packet that is IP.
    pub(super) fn of_packet(file: &File, frame: &[u8], parsed: &Parsed) -> Option<Self> {
        let transport = match parsed.transport {
            Some((UDP, _)) => KIND_UDP,
            Some((TCP, _)) => KIND_TCP,
            Some((SCTP, _)) => KIND_SCTP,
            _ => 0,
        };
        let fold = |address: [u8; 16]| {
            let words = address.as_chunks().0.iter();
            words.fold(0, |folded, word| folded ^ u32::from_be_bytes(*word))
        };
        let (source, destination, version) = match parsed.ip? {
            Addresses::V4 { source, destination } => {
                (u32::from_be_bytes(source), u32::from_be_bytes(destination), 0)
            }
            Addresses::V6 { source, destination } => (fold(source), fold(destination), KIND_IPV6),
        };
        let (from, to) = parsed.ports.unwrap_or_default();
        let at = FDIRCTRL::FLEX_OFFSET.of(file.one(&FDIRCTRL)) as usize * 2;
        let flexible =
            frame.get(at..at + 2).map_or(0, |bytes| u32::from(bytes[0]) << 8 | u32::from(bytes[1]));
        let ports = u32::from(from) << 16 | u32::from(to);
        let vlan = u32::from(parsed.vlan.unwrap_or(0));
        let kind = transport | version;
        Some(Self { kind, pool: 0, vlan, source, destination, ports, flexible }.masked(file))
    }

    /// The key of the perfect filter that the registers hold.
    pub(super) fn of_registers(file: &File) -> Self {
        let (command, ports, vlan) = (file.one(&FDIRCMD), file.one(&FDIRPORT), file.one(&FDIRVLAN));
        let key = Self {
            kind: FDIRCMD::L4TYPE.of(command) | FDIRCMD::IPV6.of(command) << 2,
            pool: FDIRCMD::POOL.of(command),
            vlan: FDIRVLAN::VLAN.of(vlan),
            // Addresses and flexible bytes lie in the registers as in the packet.
            source: file.one(&regs::FDIRIPSA).swap_bytes(),
            destination: file.one(&regs::FDIRIPDA).swap_bytes(),
            ports: FDIRPORT::SOURCE.of(ports) << 16 | FDIRPORT::DESTINATION.of(ports),
            flexible: FDIRVLAN::FLEX.of(vlan).swap_bytes() >> 16,
        };
        key.masked(file)
    }

    /// Only the bits that are compared. A bit of a mask register says not to.
    fn masked(self, file: &File) -> Self {
        let fdirm = file.one(&FDIRM);
        let unless = |masked: bool, value: u32| if masked { 0 } else { value };
        let vlan = unless(FDIRM::VLANID.is_set(fdirm), self.vlan & 0x0fff)
            | unless(FDIRM::VLANP.is_set(fdirm), self.vlan & 0xf000);
        // The masks of ports alone lie with their bits in reverse, in each half.
        let half = |mask: u32| (mask & 0xffff).reverse_bits() >> 16;
        let ports = match self.kind & 3 {
            _ if FDIRM::L4P.is_set(fdirm) => u32::MAX,
            KIND_UDP => file.one(&regs::FDIRUDPM),
            KIND_TCP => file.one(&regs::FDIRTCPM),
            _ => 0,
        };
        Self {
            kind: unless(FDIRM::L4P.is_set(fdirm), self.kind & 3) | self.kind & KIND_IPV6,
            pool: unless(FDIRM::POOL.is_set(fdirm), self.pool),
            vlan,
            source: self.source & !file.one(&regs::FDIRSIP4M).swap_bytes(),
            destination: self.destination & !file.one(&regs::FDIRDIP4M).swap_bytes(),
            ports: self.ports & !(half(ports) << 16 | half(ports >> 16)),
            flexible: unless(FDIRM::FLEX.is_set(fdirm), self.flexible),
        }
    }

    /// The hash with the key of FDIRHKEY, which names a bucket.
    pub(super) fn bucket(self, file: &File) -> u32 {
        self.hash(file.one(&regs::FDIRHKEY))
    }

    /// The hash with the key of FDIRSKEY, the signature.
    pub(super) fn signature(self, file: &File) -> u32 {
        self.hash(file.one(&regs::FDIRSKEY))
    }

    /// Fifteen bits: for each bit of the key that is set, those of the stream from there on.
    ///
    /// The stream is as long as all fields, but repeats its key each 32 bits: so all words but the first can be added up
    /// before. The first one has no word before it, which bit 0 shows.
    fn hash(self, key: u32) -> u32 {
        let first = self.pool << 24 | self.kind << 16 | self.vlan;
        let rest = self.source ^ self.destination ^ self.ports ^ self.flexible << 16;
        let high = rest ^ first ^ first >> 16;
        let low = |bit: u32| rest.rotate_left(16) ^ if bit == 0 { 0 } else { first ^ first << 16 };
        let at = |hash: u32, bit: u32| {
            let of_low = if key >> bit & 1 != 0 { low(bit) >> bit } else { 0 };
            let of_high = if key >> (bit + 16) & 1 != 0 { high >> bit } else { 0 };
            hash ^ of_low ^ of_high
        };
        (0..16_u32).fold(0, at) & 0x7fff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_of_a_rule_is_the_one_that_linux_computes() {
        // Seen: udp4, 10.9.9.1 port 1111 to 10.9.9.2 port 2222, and nothing else compared.
        let mut file = File::new();
        file.put(&regs::FDIRHKEY, 0x3dad_14e2);
        file.put(&FDIRM, 0x37);
        file.put(&regs::FDIRIPSA, 0x0109_090a);
        file.put(&regs::FDIRIPDA, 0x0209_090a);
        file.put(&FDIRPORT, 0x08ae_0457);
        file.put(&FDIRCMD, 0x0001_8829);
        let filter = Key::of_registers(&file);
        assert_eq!(filter.bucket(&file) & 0x1fff, 0x128c);
        file.put(&FDIRCMD, 0x0001_8849);
        assert_ne!(Key::of_registers(&file).bucket(&file) & 0x1fff, 0x128c, "TCP");
    }
}
