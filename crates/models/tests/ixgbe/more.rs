//! What the other file has no room for: legacy descriptors, IPv6, the SYN filter, pins, and a driver that writes anything.

use bywash_hw::ixgbe::desc::{context, packet_type, rx, tx};
use bywash_hw::ixgbe::eeprom::{self, spi};
use bywash_hw::ixgbe::regs::*;
use bywash_models::ixgbe::Board;
use bywash_wire::checksum::Sum;

use crate::bench::{Bench, LAST, data, packet};

#[test]
fn legacy_descriptors_send_with_checksum_and_tag() {
    let mut bench = Bench::started(1);
    let right = packet(17, (5, 6), 50);
    let mut sent = right.clone();
    let pseudo = Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], 17, 58).partial();
    sent[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let command = LAST | tx::IFCS.mask | tx::LEGACY_IC.mask | tx::LEGACY_CSO.with(40);
    bench.transmit(0, &[(&sent, [0, 0, command, tx::LEGACY_CSS.with(34)])]);
    assert_eq!(bench.sent[0], right);
    let command = LAST | tx::IFCS.mask | tx::VLE.mask;
    bench.transmit(0, &[(&right, [0, 0, command, tx::LEGACY_VLAN.with(0x2064)])]);
    assert_eq!(bench.sent[1][12..16], [0x81, 0, 0x20, 0x64]);
    assert!(tx::DD.is_set(bench.tx_words(0, 1)[3]));
    assert_eq!(bench.broken(), Vec::<String>::new());
}

/// TCP over IPv6, with a hop-by-hop header if asked for.
fn ipv6(options: bool, payload: usize) -> Vec<u8> {
    let (source, destination) = ([0xfd; 16], [0xfe; 16]);
    let mut segment = [0, 7, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 1, 0, 0, 0, 0, 0].to_vec();
    segment.extend((0..payload).map(|i| i.to_le_bytes()[0]));
    let length = u32::try_from(segment.len()).unwrap();
    let checksum = Sum::pseudo(&source, &destination, 6, length).bytes(&segment).checksum();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    let extension: &[u8] = if options { &[6, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
    let whole = u16::try_from(segment.len() + extension.len()).unwrap().to_be_bytes();
    let next = if options { 0 } else { 6 };
    let header = [0x60, 0, 0, 0, whole[0], whole[1], next, 64];
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd], &header, &source, &destination, extension, &segment]
        .concat()
}

#[test]
fn ipv6_is_seen_through_its_options_and_a_syn_has_its_queue() {
    let mut bench = Bench::started(3);
    bench.write(&SYNQF, 0, SYNQF::QUEUE_ENABLE.mask | SYNQF::RX_QUEUE.with(2));
    for (slot, options) in [(0, false), (1, true)] {
        bench.arrive(&ipv6(options, 30));
        let words = bench.rx_words(2, slot);
        let ip = if options { packet_type::IPV6_EXTENSIONS } else { packet_type::IPV6 };
        assert_eq!(rx::PACKET_TYPE.of(words[0]), ip | packet_type::TCP);
        assert!(rx::L4CS.is_set(words[2]) && !rx::L4E.is_set(words[2]) && !rx::IPCS.is_set(words[2]));
    }
}

#[test]
fn a_super_segment_over_ipv6_has_right_lengths_and_checksums() {
    let mut bench = Bench::started(1);
    let mut whole = ipv6(false, 1700);
    whole[18..20].fill(0);
    let pseudo = Sum::pseudo(&[0xfd; 16], &[0xfe; 16], 6, 0).partial();
    whole[70..72].copy_from_slice(&pseudo.to_be_bytes());
    let lengths = context::MACLEN.with(14) | context::IPLEN.with(40);
    let kind = tx::DTYP.with(tx::TYPE_CONTEXT) | tx::DEXT.mask | context::L4T.with(context::L4T_TCP);
    let sizes = context::L4LEN.with(20) | context::MSS.with(1000) | context::IDX.with(1);
    let order = data(1700, LAST | tx::TSE.mask, tx::TXSM.mask | tx::IDX.with(1));
    bench.transmit(0, &[(&[], [lengths, 0, kind, sizes]), (&whole, order)]);
    assert_eq!(bench.sent.len(), 2);
    for frame in &bench.sent {
        let length = u32::try_from(frame.len() - 54).unwrap();
        assert_eq!(u32::from(u16::from_be_bytes([frame[18], frame[19]])), length);
        let sum = Sum::pseudo(&[0xfd; 16], &[0xfe; 16], 6, length).bytes(&frame[54..]);
        assert_eq!(sum.checksum(), 0);
    }
}

#[test]
fn header_lengths_that_no_offload_may_have_are_named() {
    let frame = packet(17, (5, 6), 600);
    let kind = tx::DTYP.with(tx::TYPE_CONTEXT) | tx::DEXT.mask;
    let lengths = |mac: u32, ip: u32| [context::MACLEN.with(mac) | context::IPLEN.with(ip), 0, kind, 0];
    let (short, long) =
        ("MACLEN of less than 14 bytes or IPLEN of less than 6", "headers of 512 bytes or more");
    for (mac, ip, options, command, broken) in [
        (14, 1, tx::TXSM.mask, 0, Some(short)),
        (12, 20, tx::TXSM.mask, 0, Some(short)),
        (14, 498, tx::TXSM.mask, 0, Some(long)),
        (14, 497, tx::TXSM.mask, 0, None),
        (14, 494, tx::TXSM.mask, tx::VLE.mask, Some(long)),
        (14, 493, tx::TXSM.mask, tx::VLE.mask, None),
        (14, 0, 0, tx::VLE.mask, None),
    ] {
        let mut bench = Bench::started(1);
        let order = data(frame.len(), LAST | command, options);
        bench.transmit(0, &[(&[], lengths(mac, ip)), (&frame, order)]);
        let said = bench.broken();
        assert_eq!(bench.sent.len(), usize::from(broken.is_none()), "{mac} {ip}: {said:?}");
        assert!(
            said.len() == usize::from(broken.is_some())
                && said.iter().all(|said| said.contains(broken.unwrap()))
        );
    }
}

#[test]
fn an_eeprom_word_is_read_by_the_pins_of_eec() {
    let mut bench = Bench::new();
    let base = bench.read(&EEC, 0) | EEC::REQ.mask;
    bench.write(&EEC, 0, base);
    assert!(EEC::GNT.is_set(bench.read(&EEC, 0)));
    let clock = |bench: &mut Bench, value: u32, bits: u32| {
        (0..bits).rev().fold(0, |seen, bit| {
            let data = base | EEC::DI.with(value >> bit & 1);
            bench.write(&EEC, 0, data);
            bench.write(&EEC, 0, data | EEC::SK.mask);
            let now = EEC::DO.of(bench.read(&EEC, 0));
            bench.write(&EEC, 0, data);
            seen << 1 | now
        })
    };
    // The select line ends a command; without it, the chip would go on to the next word.
    for _ in 0..2 {
        bench.write(&EEC, 0, base | EEC::CS.mask);
        bench.write(&EEC, 0, base);
        clock(&mut bench, u32::from(spi::READ), 8);
        clock(&mut bench, u32::from(eeprom::MAC_ADDRESS) * 2, 16);
        assert_eq!(clock(&mut bench, 0, 16), 0x0200, "02:00, low byte first");
    }
}

#[test]
fn an_x540_has_less_packet_memory_and_another_semaphore() {
    let mut bench = Bench::with(Board { device: 0x1528, ..Board::default() });
    assert_eq!(bench.read(&RXPBSIZE, 0), 384 << 10);
    assert_eq!(Bench::new().read(&RXPBSIZE, 0), 512 << 10);
    let perfect = FDIRCTRL::PBALLOC.with(1) | FDIRCTRL::PERFECT_MATCH.mask;
    bench.write(&FDIRCTRL, 0, perfect);
    let why = "FDIRCTRL[0]: RXPBSIZE has 384 KiB, and filters take 64 KiB of the same 384";
    assert_eq!(bench.broken(), [why]);
    bench.write(&RXPBSIZE, 0, RXPBSIZE::SIZE.with(384 - 64));
    bench.write(&FDIRCTRL, 0, perfect);
    // The first read takes it, the second sees it taken; without it nothing is to be written.
    assert!(!SW_FW_SYNC::REGSMP.is_set(bench.read(&SW_FW_SYNC, 0)));
    assert!(SW_FW_SYNC::REGSMP.is_set(bench.read(&SW_FW_SYNC, 0)));
    bench.write(&SW_FW_SYNC, 0, SW_FW_SYNC::SW_EEP.mask);
    assert_eq!(bench.broken(), Vec::<String>::new());
    bench.write(&SW_FW_SYNC, 0, 0);
    assert_eq!(bench.broken(), ["SW_FW_SYNC[0]: used without the semaphore that guards it"]);
    bench.set(&SWSM, SWSM::SWESMBI.mask);
    assert!(!SWSM::SWESMBI.is_set(bench.read(&SWSM, 0)), "it is the 82599's");
}

#[test]
fn causes_are_read_without_clearing_them_where_they_are_set() {
    for device in [0x10fb, 0x10f8, 0x1528] {
        let mut bench = Bench::with(Board { device, ..Board::default() });
        bench.wait(20_000);
        assert!(bench.nic.link_up());
        for _ in 0..2 {
            assert!(EICR::LSC.is_set(bench.read(&EICS, 0)), "{device:#x}");
        }
        bench.write(&EICS, 0, EICS.writable & EICR::RTX_QUEUE.mask);
        let causes = bench.read(&EICS, 0);
        assert_eq!((EICR::RTX_QUEUE.of(causes), EICR::LSC.of(causes)), (0xffff, 1), "{device:#x}");
        bench.write(&EICR, 0, EICR::LSC.mask);
        assert_eq!(bench.read(&EICS, 0), EICR::RTX_QUEUE.mask, "{device:#x}");
    }
}

#[test]
fn nothing_that_a_driver_or_the_wire_does_can_panic() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 32).unwrap()
    };
    for _ in 0..20 {
        let mut bench = Bench::started(4);
        for step in 0..3_000 {
            if step % 20 == 0 {
                // Queues stop at what they cannot do; a driver would start them anew.
                let queue = next() % 4;
                bench.write(&RXDCTL, queue, 0);
                bench.write(&TXDCTL, queue, 0);
                bench.start_queue(queue);
            }
            let hot =
                [&SRRCTL, &RDT, &RDH, &RDLEN, &RXDCTL, &TDT, &TDH, &TDLEN, &HLREG0, &MAXFRS, &RDBAH, &TDBAH];
            let register = match next() % 3 {
                0 => &TABLE[next() as usize % TABLE.len()],
                _ => hot[next() as usize % hot.len()],
            };
            // Resets would only undo what came before.
            if !matches!(register.name, "CTRL" | "RXCTRL" | "DMATXCTL") {
                let value = next() >> (next() % 32);
                // The first few instances are the ones in use.
                let index = next() % register.count().min(4);
                bench.write(register, index, value);
                bench.read(register, index);
            }
            if step % 3 == 0 {
                let mut frame =
                    packet(if next() % 2 == 0 { 6 } else { 17 }, (1, 2), (next() % 3000) as usize);
                let at = next() as usize % frame.len();
                frame[at] = next().to_le_bytes()[0];
                frame.truncate(frame.len() - next() as usize % 20);
                bench.nic.receive(frame, next() % 8 != 0);
            }
            let at = next() as usize % bench.memory.bytes.len();
            bench.memory.bytes[at] = next().to_le_bytes()[0];
            if step % 5 == 0 {
                let words = [next(), next(), next(), next()].map(|word| word | next());
                bench.transmit(next() % 4, &[(&[1; 90], words), (&[], words)]);
            }
            bench.wait(u64::from(next() % 100));
        }
    }
}
