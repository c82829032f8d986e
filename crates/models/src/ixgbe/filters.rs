//! Which frames are for us (MAC, multicast and VLAN filters), and which queue a rule sends them to (EtherType, SYN and
//! five-tuple filters).

use bywash_hw::ixgbe::regs::{self, ETQF, ETQS, FCTRL, FTQF, L34TIMIR, MCSTCTRL, RAH, SDPQF, SYNQF, VLNCTRL};

use super::file::File;
use super::parse::{Addresses, Parsed, SCTP, TCP, UDP};

/// How a frame passed the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// By its own address.
    Exact,
    /// By a hash or because everything passes.
    Inexact,
}

/// Whether a frame passes the address and VLAN filters; where the host has put the function into a VLAN, that alone.
pub(super) fn layer_2(file: &File, port_vlan: Option<u16>, frame: &[u8], parsed: &Parsed) -> Option<Passed> {
    let destination: [u8; 6] = frame.get(..6)?.try_into().ok()?;
    if let Some(vlan) = port_vlan {
        parsed.vlan.filter(|tag| tag & 0xfff == vlan)?;
    } else if let Some(tag) = parsed.vlan {
        let id = u32::from(tag) & 0xfff;
        let wanted = file.get(&regs::VFTA, id >> 5) >> (id & 31) & 1 != 0;
        if VLNCTRL::VFE.is_set(file.one(&VLNCTRL)) && !wanted {
            return None;
        }
    }
    let fctrl = file.one(&FCTRL);
    if destination == [0xff; 6] {
        return FCTRL::BAM.is_set(fctrl).then_some(Passed::Exact);
    }
    if (0..regs::RAL.count()).any(|i| address(file, i) == Some(destination)) {
        return Some(Passed::Exact);
    }
    let mcstctrl = file.one(&MCSTCTRL);
    let hash = table_index(destination, MCSTCTRL::MO.of(mcstctrl));
    let bit_in = |table| file.get(table, hash >> 5) >> (hash & 31) & 1 != 0;
    let passed = if destination[0] & 1 != 0 {
        FCTRL::MPE.is_set(fctrl) || MCSTCTRL::MFE.is_set(mcstctrl) && bit_in(&regs::MTA)
    } else {
        FCTRL::UPE.is_set(fctrl) || bit_in(&regs::PFUTA)
    };
    passed.then_some(Passed::Inexact)
}

/// Receive address `i`, if it is valid.
fn address(file: &File, i: u32) -> Option<[u8; 6]> {
    let high = file.get(&RAH, i);
    if !RAH::AV.is_set(high) {
        return None;
    }
    let ([a, b, c, d], [e, f, ..]) = (file.get(&regs::RAL, i).to_le_bytes(), high.to_le_bytes());
    Some([a, b, c, d, e, f])
}

/// Bit of the 4096-bit tables: twelve bits of the address, which ones MCSTCTRL.MO says.
fn table_index(address: [u8; 6], offset: u32) -> u32 {
    let high = u32::from(u16::from_le_bytes([address[4], address[5]]));
    (high >> [4, 3, 2, 0][offset as usize & 3]) & 0xfff
}

/// What the filters before RSS say of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steered {
    pub(super) queue: Option<u32>,
    /// Number of the EtherType filter that matched.
    pub(super) ether_type: Option<u32>,
}

/// Looks at EtherType filters, then at the SYN filter and the five-tuple filters, of which those are on that have a bit.
pub(super) fn steer(file: &File, five_tuples: u128, parsed: &Parsed) -> Steered {
    for i in 0..ETQF.count() {
        let etqf = file.get(&ETQF, i);
        if ETQF::FILTER_EN.is_set(etqf) && ETQF::ETYPE.of(etqf) == u32::from(parsed.ether_type) {
            let etqs = file.get(&ETQS, i);
            let queue = ETQS::QUEUE_EN.is_set(etqs).then(|| ETQS::RX_QUEUE.of(etqs));
            return Steered { queue, ether_type: Some(i) };
        }
    }
    let synqf = file.one(&SYNQF);
    let syn = (parsed.syn && SYNQF::QUEUE_ENABLE.is_set(synqf)).then(|| SYNQF::RX_QUEUE.of(synqf));
    let tuple = five_tuple(file, five_tuples, parsed);
    let queue = if SYNQF::SYNQFP.is_set(synqf) { syn.or(tuple) } else { tuple.or(syn) };
    Steered { queue, ether_type: None }
}

/// Whether a five-tuple filter's L34TIMIR leaves TCP's flags alone, as it must.
pub(super) fn leaves_flags_alone(l34timir: u32) -> bool {
    L34TIMIR::CTRL_BP.is_set(l34timir) && L34TIMIR::CTRL.of(l34timir) == 0
}

/// Queue of the five-tuple filter with the highest priority that matches, the first of equals.
fn five_tuple(file: &File, mut on: u128, parsed: &Parsed) -> Option<u32> {
    let Some(Addresses::V4 { source, destination }) = parsed.ip else { return None };
    let mut best: Option<(u32, u32)> = None;
    while on != 0 {
        let i = on.trailing_zeros();
        on &= on - 1;
        let ftqf = file.get(&FTQF, i);
        // Addresses and ports lie in the registers as in the packet.
        let ports = file.get(&SDPQF, i);
        let port = |port: u16| u32::from(u16::from_le_bytes(port.to_be_bytes()));
        let (from, to) = parsed.ports.unzip();
        let protocol = match parsed.transport {
            Some((TCP, _)) => 0,
            Some((UDP, _)) => 1,
            Some((SCTP, _)) => 2,
            _ => 3,
        };
        let matches = (FTQF::MASK_SOURCE.is_set(ftqf)
            || file.get(&regs::SAQF, i) == u32::from_le_bytes(source))
            && (FTQF::MASK_DESTINATION.is_set(ftqf)
                || file.get(&regs::DAQF, i) == u32::from_le_bytes(destination))
            && (FTQF::MASK_SOURCE_PORT.is_set(ftqf) || from.map(port) == Some(SDPQF::SOURCE.of(ports)))
            && (FTQF::MASK_DESTINATION_PORT.is_set(ftqf)
                || to.map(port) == Some(SDPQF::DESTINATION.of(ports)))
            && (FTQF::MASK_PROTOCOL.is_set(ftqf) || FTQF::PROTOCOL.of(ftqf) == protocol);
        let (priority, l34timir) = (FTQF::PRIORITY.of(ftqf), file.get(&L34TIMIR, i));
        // What the others do is not known: they find nothing here.
        let matches = matches && leaves_flags_alone(l34timir);
        if matches && best.is_none_or(|(other, _)| priority > other) {
            best = Some((priority, L34TIMIR::RX_QUEUE.of(l34timir)));
        }
    }
    best.map(|(_, queue)| queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_multicast_hash_takes_the_bits_that_mo_names() {
        let address = [0x01, 0, 0x5e, 0, 0x12, 0xab];
        // Bits 47:36, 46:35, 45:34 and 43:32 of the address, first byte lowest.
        assert_eq!(table_index(address, 0), 0xab1);
        assert_eq!(table_index(address, 1), 0xab12 >> 3 & 0xfff);
        assert_eq!(table_index(address, 2), 0xab12 >> 2 & 0xfff);
        assert_eq!(table_index(address, 3), 0xb12);
    }
}
