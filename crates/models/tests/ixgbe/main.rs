//! The 82599's model, driven by a tiny driver: what the datasheet says of each block.
#![expect(clippy::unwrap_used, reason = "what cannot be set up must fail the test")]

mod bench;
mod flow_director;
mod more;
mod phy;
mod virtual_function;

use bench::{Bench, LAST, MAC, RING, data, packet};
use bywash_hw::ixgbe::desc::{context, packet_type, rss_type, rx, tx};
use bywash_hw::ixgbe::eeprom;
use bywash_hw::ixgbe::regs::*;
use bywash_wire::checksum::Sum;

const TCP: u8 = 6;
const UDP: u8 = 17;

#[test]
fn a_driver_by_the_book_breaks_no_rule() {
    let mut bench = Bench::started(2);
    bench.arrive(&packet(UDP, (1, 2), 30));
    bench.transmit(0, &[(&packet(UDP, (1, 2), 30), data(72, LAST, 0))]);
    assert_eq!(bench.broken(), Vec::<String>::new());
    assert_eq!(bench.sent.len(), 1);
}

#[test]
fn a_reset_takes_its_time_and_brings_the_values_back() {
    let mut bench = Bench::new();
    bench.wait(20_000);
    bench.write(&VLNCTRL, 0, 0x4000_88a8);
    bench.write(&CTRL, 0, CTRL::RST.mask);
    assert!(CTRL::RST.is_set(bench.read(&CTRL, 0)));
    assert_eq!(bench.broken(), Vec::<String>::new());
    bench.read(&VLNCTRL, 0);
    assert_eq!(bench.broken(), ["VLNCTRL[0]: touched within 1 ms after a reset"]);
    bench.wait(1_000);
    assert_eq!(bench.read(&CTRL, 0), 0);
    assert_eq!(bench.read(&VLNCTRL, 0), 0x8100);
    assert_eq!(bench.read(&RAL, 0).to_le_bytes(), MAC[..4]);
    assert!(!bench.nic.link_up());
    bench.wait(10_000);
    assert!(bench.nic.link_up() && LINKS::UP.is_set(bench.read(&LINKS, 0)));
}

#[test]
fn registers_change_where_they_may_and_have_their_second_addresses() {
    let mut bench = Bench::new();
    for (register, value, seen) in [
        (&STATUS, u32::MAX, 0x0008_0000),
        (&RDBAL, u32::MAX, 0xffff_ff80),
        (&RDLEN, 0x000f_ffff, 0x000f_ff80),
        (&FCRTH, u32::MAX, 0x8007_fff0),
        (&RAH, u32::MAX, 0x8000_ffff),
        (&RXCTRL, u32::MAX, 1),
        (&MTA, 0x5a5a_5a5a, 0x5a5a_5a5a),
    ] {
        bench.write(register, 0, value);
        assert_eq!(bench.read(register, 0), seen, "{}", register.name);
    }
    bench.nic.write32(0x2104, 0x0200_0004);
    assert_eq!(bench.read(&SRRCTL, 1), 0x0200_0004);
    bench.write(&RAL, 3, 77);
    assert_eq!(bench.nic.read32(0x5418), 77);
    assert_eq!(bench.nic.read32(0xb000), 0);
    assert!(bench.broken().iter().any(|line| line == "(none)[0]: no register has offset 0xb000"));
}

#[test]
fn the_eeprom_is_read_by_eerd_with_a_checksum_that_fits() {
    let mut bench = Bench::new();
    let mut word = |at: u16| {
        bench.write(&EERD, 0, EERD::ADDR.with(u32::from(at)) | EERD::START.mask);
        let eerd = bench.read(&EERD, 0);
        assert!(EERD::DONE.is_set(eerd));
        u16::try_from(EERD::DATA.of(eerd)).unwrap()
    };
    let sum = (0..=eeprom::CHECKSUM_WORD).fold(0, |sum: u16, at| sum.wrapping_add(word(at)));
    assert_eq!(sum, eeprom::CHECKSUM_SUM);
}

#[test]
fn the_semaphores_are_taken_by_reading_and_guard_each_other() {
    let mut bench = Bench::new();
    assert!(!SWSM::SMBI.is_set(bench.read(&SWSM, 0)));
    assert!(SWSM::SMBI.is_set(bench.read(&SWSM, 0)));
    bench.write(&SW_FW_SYNC, 0, 1);
    assert_eq!(bench.broken(), ["SW_FW_SYNC[0]: used without the semaphore that guards it"]);
    bench.set(&SWSM, SWSM::SWESMBI.mask);
    bench.write(&SW_FW_SYNC, 0, 3);
    bench.write(&SWSM, 0, 0);
    assert!(!SWSM::SMBI.is_set(bench.read(&SWSM, 0)));
    assert_eq!(bench.broken(), Vec::<String>::new());
}

#[test]
fn a_received_packet_is_described() {
    let mut bench = Bench::started(1);
    let frame = packet(TCP, (1000, 80), 100);
    bench.arrive(&frame);
    let words = bench.rx_words(0, 0);
    assert_eq!(bench.rx_bytes(0, 0), frame);
    assert_eq!(rx::PACKET_TYPE.of(words[0]), packet_type::IPV4 | packet_type::TCP);
    assert!(rx::EOP.is_set(words[2]) && rx::IPCS.is_set(words[2]) && rx::L4CS.is_set(words[2]));
    assert!(!rx::IPE.is_set(words[2]) && !rx::L4E.is_set(words[2]));
    assert_eq!(bench.read(&RDH, 0), 1);

    let mut wrong = frame.clone();
    wrong[60] ^= 1;
    wrong[22] ^= 1;
    bench.arrive(&wrong);
    let words = bench.rx_words(0, 1);
    assert!(rx::IPE.is_set(words[2]) && rx::L4E.is_set(words[2]));
}

#[test]
fn a_legacy_descriptor_has_its_length_and_status_elsewhere() {
    let mut bench = Bench::started(1);
    bench.write(&RXCTRL, 0, 0);
    bench.write(&SRRCTL, 0, SRRCTL::BSIZEPACKET.with(2));
    bench.write(&RXCTRL, 0, 1);
    bench.arrive(&packet(UDP, (1, 2), 58));
    let words = bench.rx_words(0, 0);
    assert_eq!(words[2] & 0xffff, 100);
    assert_eq!(words[3] & 0x3, 3);
}

#[test]
fn a_long_packet_takes_several_descriptors_if_jumbo_is_on() {
    let mut bench = Bench::started(1);
    let frame = packet(UDP, (1, 2), 4958);
    bench.arrive(&frame);
    assert_eq!(bench.read(&ROC, 0), 1);
    bench.set(&HLREG0, HLREG0::JUMBOEN.mask);
    bench.write(&MAXFRS, 0, MAXFRS::MFS.with(9018));
    bench.arrive(&frame);
    let status: Vec<u32> = (0..3).map(|slot| bench.rx_words(0, slot)[2] & 3).collect();
    assert_eq!(status, [1, 1, 3]);
    assert_eq!((0..3).flat_map(|slot| bench.rx_bytes(0, slot)).collect::<Vec<_>>(), frame);
}

#[test]
fn a_tag_is_taken_off_and_filtered_by_its_id() {
    let mut bench = Bench::started(1);
    let plain = packet(UDP, (1, 2), 40);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0x60, 0x2a]);
    bench.write(&RXDCTL, 0, RXDCTL::ENABLE.mask | RXDCTL::VME.mask);
    bench.set(&VLNCTRL, VLNCTRL::VFE.mask);
    bench.arrive(&tagged);
    assert!(bench.filled(1).is_empty());
    bench.write(&VFTA, 1, 1 << 10);
    bench.arrive(&tagged);
    let words = bench.rx_words(0, 0);
    assert_eq!((rx::VLAN.of(words[3]), rx::VP.is_set(words[2])), (0x602a, true));
    assert_eq!(bench.rx_bytes(0, 0), plain);
}

#[test]
fn only_frames_for_us_pass_until_told_otherwise() {
    let mut bench = Bench::started(1);
    let send = |bench: &mut Bench, first: u8, last: u8| {
        let mut frame = packet(UDP, (1, 2), 40);
        frame[0..6].copy_from_slice(&[first, 0, 0, 0, 0, last]);
        bench.arrive(&frame);
        bench.read(&GPRC, 0)
    };
    assert_eq!(send(&mut bench, 0x02, 7), 0);
    assert_eq!(send(&mut bench, 0x01, 7), 0);
    bench.write(&RAL, 5, u32::from_le_bytes([2, 0, 0, 0]));
    bench.write(&RAH, 5, u32::from_le_bytes([0, 7, 0, 0x80]));
    assert_eq!(send(&mut bench, 0x02, 7), 1);
    // Bits 47:36 of the address are 0x070.
    bench.write(&MCSTCTRL, 0, MCSTCTRL::MFE.mask);
    bench.write(&MTA, 0x070 / 32, 1 << (0x070 % 32));
    assert_eq!(send(&mut bench, 0x01, 7), 1);
    assert_eq!(bench.read(&MPRC, 0), 1);
    bench.write(&RXCTRL, 0, 0);
    bench.set(&FCTRL, FCTRL::UPE.mask | FCTRL::MPE.mask);
    bench.write(&RXCTRL, 0, 1);
    assert_eq!(send(&mut bench, 0x02, 99), 1);
    assert_eq!(bench.broken(), Vec::<String>::new());
}

#[test]
fn rss_spreads_by_the_table_and_says_the_hash() {
    let mut bench = Bench::started(4);
    // The key and a hash that Microsoft publishes.
    let key = [0x6d5a_56da, 0x255b_0ec2, 0x4167_253d, 0x43a3_8fb0, 0xd0ca_2bcb, 0xae7b_30b4, 0x77cb_2da3];
    for (i, word) in (0..).zip(key) {
        bench.write(&RSSRK, i, u32::swap_bytes(word));
    }
    bench.write(&MRQC, 0, MRQC::MRQE.with(1) | MRQC::RSS_IPV4_TCP.mask | MRQC::RSS_IPV4.mask);
    bench.write(&RXCTRL, 0, 0);
    bench.write(&RXCSUM, 0, RXCSUM::PCSD.mask);
    bench.write(&RXCTRL, 0, 1);
    let mut frame = packet(TCP, (2794, 1766), 20);
    frame[26..34].copy_from_slice(&[66, 9, 149, 187, 161, 142, 100, 80]);
    let entry = 0x51cc_c178 & 0x7f;
    bench.write(&RETA, entry / 4, 3 << (entry % 4 * 8));
    bench.arrive(&frame);
    assert_eq!(bench.filled(4), [3]);
    let words = bench.rx_words(3, 0);
    assert_eq!((words[1], rx::RSS_TYPE.of(words[0])), (0x51cc_c178, rss_type::IPV4_TCP));
}

#[test]
fn filters_choose_queues_before_rss() {
    let mut bench = Bench::started(4);
    bench.write(&ETQF, 2, ETQF::ETYPE.with(0x88cc) | ETQF::FILTER_EN.mask);
    bench.write(&ETQS, 2, ETQS::RX_QUEUE.with(1) | ETQS::QUEUE_EN.mask);
    let port = |port: u16| u32::from(u16::from_le_bytes(port.to_be_bytes()));
    bench.write(&SDPQF, 9, SDPQF::DESTINATION.with(port(53)));
    let masks = FTQF::MASK_SOURCE.mask | FTQF::MASK_DESTINATION.mask | FTQF::MASK_SOURCE_PORT.mask;
    bench.write(&FTQF, 9, FTQF::PROTOCOL.with(1) | masks | FTQF::PRIORITY.with(1) | FTQF::QUEUE_ENABLE.mask);
    bench.write(&L34TIMIR, 9, L34TIMIR::CTRL_BP.mask | L34TIMIR::RX_QUEUE.with(2));
    let mut lldp = packet(UDP, (1, 2), 40);
    lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
    bench.arrive(&lldp);
    assert_eq!(bench.filled(4), [1]);
    assert_eq!(rx::PACKET_TYPE.of(bench.rx_words(1, 0)[0]), packet_type::ETQF | 2);
    bench.arrive(&packet(UDP, (9, 53), 40));
    assert_eq!(bench.filled(4), [1, 2]);
    bench.arrive(&packet(TCP, (9, 53), 40));
    assert_eq!(bench.filled(4), [0, 1, 2]);
    assert_eq!(bench.broken(), [""; 0]);
    for other in [0, L34TIMIR::CTRL_BP.mask | L34TIMIR::CTRL.with(1)] {
        bench.write(&L34TIMIR, 9, other | L34TIMIR::RX_QUEUE.with(3));
        bench.arrive(&packet(UDP, (9, 53), 40));
        assert_eq!(bench.filled(4), [0, 1, 2], "it finds nothing");
        let broken = bench.broken();
        assert!(broken[0].starts_with("L34TIMIR[9]: bits 19:13 of 0x"), "{broken:?}");
    }
}

fn udp_context() -> [u32; 4] {
    let lengths = context::MACLEN.with(14) | context::IPLEN.with(20) | context::VLAN.with(0x2005);
    [lengths, 0, tx::DTYP.with(tx::TYPE_CONTEXT) | tx::DEXT.mask | context::IPV4.mask, 0]
}

#[test]
fn checksums_and_tags_are_inserted() {
    let mut bench = Bench::started(1);
    let right = packet(UDP, (5, 6), 50);
    let mut sent = right.clone();
    sent[24..26].fill(0);
    let pseudo = Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], UDP, 58).partial();
    sent[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let options = tx::IXSM.mask | tx::TXSM.mask;
    bench.transmit(0, &[(&[], udp_context()), (&sent, data(sent.len(), LAST, options))]);
    assert_eq!(bench.sent, std::slice::from_ref(&right));
    bench.transmit(0, &[(&right, data(right.len(), LAST | tx::VLE.mask, 0))]);
    assert_eq!(bench.sent[1][12..16], [0x81, 0, 0x20, 0x05]);
    assert!(tx::DD.is_set(bench.tx_words(0, 2)[3]));
    assert!(!tx::DD.is_set(bench.tx_words(0, 0)[3]), "only RS is answered");
    assert_eq!(bench.broken(), Vec::<String>::new());
}

#[test]
fn a_super_segment_is_cut_into_packets_with_right_headers() {
    let mut bench = Bench::started(1);
    let mut whole = packet(TCP, (5, 6), 2500);
    whole[16..18].fill(0);
    whole[24..26].fill(0);
    let pseudo = Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], TCP, 0).partial();
    whole[50..52].copy_from_slice(&pseudo.to_be_bytes());
    let mut context = udp_context();
    context[2] |= context::L4T.with(context::L4T_TCP);
    context[3] = context::L4LEN.with(20) | context::MSS.with(1000);
    let (head, tail) = whole.split_at(1300);
    let first = data(2500, tx::TSE.mask, tx::IXSM.mask | tx::TXSM.mask);
    bench.transmit(0, &[(&[], context), (head, first), (tail, data(0, LAST, 0))]);
    assert_eq!(bench.sent.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
    for (i, frame) in bench.sent.iter().enumerate() {
        assert_eq!(Sum::new().bytes(&frame[14..34]).checksum(), 0);
        let length = u32::try_from(frame.len() - 34).unwrap();
        let sum = Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], TCP, length).bytes(&frame[34..]);
        assert_eq!(sum.checksum(), 0);
        assert_eq!(
            u32::from_be_bytes(frame[38..42].try_into().unwrap()),
            100 + 1000 * u32::try_from(i).unwrap()
        );
        // FIN and PSH stand in the last one only.
        assert_eq!(frame[47], if i == 2 { 0x19 } else { 0x10 });
    }
    assert_eq!(bench.sent.iter().flat_map(|frame| frame[54..].to_vec()).collect::<Vec<_>>(), whole[54..]);
    assert_eq!(bench.nic.observed().tso_packets, 1);
    assert_eq!(bench.read(&GPTC, 0), 3);
}

#[test]
fn the_head_can_be_written_to_memory_instead() {
    let mut bench = Bench::started(1);
    bench.write(&TDWBAL, 0, 0x10_fff0 | TDWBAL::HEAD_WB_EN.mask);
    let frame = packet(UDP, (1, 2), 40);
    bench.transmit(0, &[(&frame, data(frame.len(), LAST, 0))]);
    assert_eq!(bench.memory.bytes[0xfff0], 1);
    assert!(!tx::DD.is_set(bench.tx_words(0, 0)[3]));
}

#[test]
fn counters_count_stick_and_are_cleared_by_reading() {
    let mut bench = Bench::started(2);
    bench.write(&RQSMR, 0, 0x0000_0700);
    let frame = packet(UDP, (1, 2), 100);
    (0..3).for_each(|_| bench.arrive(&frame));
    bench.nic.receive(frame.clone(), false);
    let wire = u32::try_from(frame.len() + 4).unwrap();
    for (register, value) in
        [(&GPRC, 3), (&TPR, 4), (&CRCERRS, 1), (&PRC255, 3), (&GORCL, 3 * wire), (&QPRC, 3)]
    {
        assert_eq!(bench.read(register, 0), value, "{}", register.name);
        assert_eq!(bench.read(register, 0), 0, "{}", register.name);
    }
}

#[test]
fn a_queue_without_descriptors_holds_up_or_drops() {
    let mut bench = Bench::started(1);
    let frame = packet(UDP, (1, 2), 40);
    (0..RING + 2).for_each(|_| bench.arrive(&frame));
    assert_eq!(bench.read(&RDH, 0), RING - 1);
    bench.write(&PFQDE, 0, PFQDE::QDE.mask | PFQDE::WE.mask);
    bench.tick();
    assert_eq!(bench.read(&QPRDC, 0), 3);
}

#[test]
fn a_queue_raises_its_vector_and_the_link_its_own() {
    let mut bench = Bench::started(2);
    bench.write(&GPIE, 0, GPIE::MSIX_MODE.mask | GPIE::EIAME.mask);
    bench.write(&EIAC, 0, 0xffff);
    bench.write(&IVAR, 0, 0x0080_0081 | 0x0000_8200);
    bench.write(&IVAR_MISC, 0, 0x8500);
    bench.write(&EIMS, 0, EICR::LSC.mask);
    bench.write(&EIMS_EX, 0, 7);
    bench.tick();
    bench.interrupts.clear();
    let _earlier = bench.read(&EICR, 0);
    bench.arrive(&packet(UDP, (1, 2), 40));
    assert_eq!(bench.interrupts, [1]);
    let frame = packet(UDP, (1, 2), 40);
    bench.transmit(0, &[(&frame, data(frame.len(), LAST, 0))]);
    assert_eq!(bench.interrupts, [1, 2]);
    bench.nic.set_light(false);
    bench.tick();
    assert_eq!(bench.interrupts, [1, 2, 5]);
    assert_eq!(bench.read(&EICR, 0), EICR::LSC.mask);
}

#[test]
fn in_loopback_the_nic_hears_itself() {
    let mut bench = Bench::started(1);
    bench.nic.set_light(false);
    bench.tick();
    bench.set(&HLREG0, HLREG0::LPBK.mask);
    let frame = packet(UDP, (1, 2), 40);
    bench.transmit(0, &[(&frame, data(frame.len(), LAST, 0))]);
    assert_eq!(bench.sent.len(), 0);
    assert_eq!(bench.rx_bytes(0, 0), frame);
}

/// What a driver does wrong, and what the model says to it.
#[test]
fn what_the_datasheet_forbids_is_named() {
    type Wrong = fn(&mut Bench);
    let cases: [(&str, Wrong); 18] = [
        ("RDT[5]: written before the queue is enabled (poll ENABLE until it reads 1)", |b| {
            b.write(&RDT, 5, 3)
        }),
        ("RDT[0]: tail 8 lies outside the ring", |b| b.write(&RDT, 0, RING)),
        ("RDBAL[0]: changed while the queue is enabled", |b| b.write(&RDBAL, 0, 0)),
        ("TDBAL[3]: 0x40 is not a multiple of 128 bytes", |b| b.write(&TDBAL, 3, 0x40)),
        ("FCTRL[0]: changed while RXCTRL.RXEN is set", |b| b.write(&FCTRL, 0, 0)),
        ("MTQC[0]: changed while RTTDCS.ARBDIS is clear", |b| b.write(&MTQC, 0, 2)),
        ("DCA_RXCTRL[0]: bit 12 must be written 0", |b| {
            b.write(&DCA_RXCTRL, 0, 0);
            b.write(&DCA_RXCTRL, 0, 0x1000);
        }),
        ("TDWBAL[0]: head write-back address 0x5 is not a multiple of 16 bytes", |b| b.write(&TDWBAL, 0, 5)),
        ("RXDCTL[9]: the queue is enabled with a ring of no descriptors", |b| b.write(&RXDCTL, 9, 1 << 25)),
        (
            "DCA_TXCTRL[0]: DESC_WRO_EN is set when the queue is enabled: the head may seem to go backwards",
            |b| {
                b.write(&TXDCTL, 0, 0);
                b.write(&DCA_TXCTRL, 0, DCA_TXCTRL::DESC_WRO_EN.mask);
                b.write(&TXDCTL, 0, TXDCTL::ENABLE.mask);
            },
        ),
        ("RDRXCTL[0]: HLREG0.RXCRCSTRP and RDRXCTL.CRCSTRIP differ when the receiver is started", |b| {
            b.write(&RXCTRL, 0, 0);
            let hlreg0 = b.read(&HLREG0, 0);
            b.write(&HLREG0, 0, hlreg0 & !HLREG0::RXCRCSTRP.mask);
            b.write(&RXCTRL, 0, RXCTRL::RXEN.mask);
        }),
        (
            "RDRXCTL[0]: RSCACKC and FCOE_WRFIX must be set, RSCFRSTSIZE cleared, before the receiver is started",
            |b| {
                b.write(&RXCTRL, 0, 0);
                let rdrxctl = b.read(&RDRXCTL, 0);
                b.write(&RDRXCTL, 0, rdrxctl & !RDRXCTL::FCOE_WRFIX.mask);
                b.write(&RXCTRL, 0, RXCTRL::RXEN.mask);
            },
        ),
        ("SRRCTL[0]: 0x2000000 names no buffer size, or a descriptor type that is not modelled", |b| {
            b.write(&SRRCTL, 0, SRRCTL::DESCTYPE.with(1))
        }),
        ("SRRCTL[2]: 0xa000002 names no buffer size, or a descriptor type that is not modelled", |b| {
            b.write(&SRRCTL, 2, SRRCTL::BSIZEPACKET.with(2) | SRRCTL::DESCTYPE.with(5))
        }),
        ("TXDCTL[4]: the queue is enabled before DMATXCTL.TE", |b| {
            let dmatxctl = b.read(&DMATXCTL, 0);
            b.write(&DMATXCTL, 0, dmatxctl & !DMATXCTL::TE.mask);
            b.write(&TDLEN, 4, RING * 16);
            b.write(&DCA_TXCTRL, 4, 0);
            b.write(&TXDCTL, 4, TXDCTL::ENABLE.mask);
        }),
        (
            "TDT[0]: descriptor [00000000, 00000000, 2b700000, 000a0000]: DTYP is neither a context nor data",
            |b| {
                let words = data(40, LAST, 0);
                let words = [words[0], words[1], tx::DTYP.put(words[2], 7), words[3]];
                b.transmit(0, &[(&[], words)]);
            },
        ),
        ("SW_FW_SYNC[0]: software wrote the firmware's bits", |b| {
            b.set(&SWSM, SWSM::SWESMBI.mask);
            b.write(&SW_FW_SYNC, 0, SW_FW_SYNC::FW_EEP.mask);
        }),
        ("RDBAL[0]: DMA without bus mastering: set it in the PCI command register", |b| {
            b.nic.set_bus_master(false);
            b.arrive(&packet(UDP, (1, 2), 40));
        }),
    ];
    for (said, wrong) in cases {
        let mut bench = Bench::started(1);
        wrong(&mut bench);
        assert_eq!(bench.broken(), [said]);
    }
}

#[test]
fn dma_outside_the_mapping_stops_the_queue_and_is_named() {
    let mut bench = Bench::started(1);
    let mut words = data(64, LAST | tx::LENGTH.with(64), 0);
    words[0] = 0x1234;
    bench.transmit(0, &[(&[], words), (&[], words)]);
    bench.tick();
    assert_eq!(bench.broken(), ["TDBAL[0]: DMA of 64 bytes at 0x1234, where nothing is mapped for it"]);
    assert_eq!(bench.read(&TDH, 0), 0);
}

#[test]
fn faults_show_where_a_driver_would_look() {
    let mut bench = Bench::new();
    bench.nic.faults.reset_hangs = true;
    bench.write(&CTRL, 0, CTRL::RST.mask);
    bench.wait(1_000_000);
    assert!(CTRL::RST.is_set(bench.read(&CTRL, 0)));
    bench.nic.faults.stuck_semaphore = true;
    assert!(SWSM::SMBI.is_set(bench.read(&SWSM, 0)));
    bench.nic.faults.no_link = true;
    bench.wait(1_000_000);
    assert!(!LINKS::UP.is_set(bench.read(&LINKS, 0)));
    bench.nic.faults.removed = true;
    assert_eq!(bench.read(&STATUS, 0), u32::MAX);

    let mut bench = Bench::started(1);
    bench.nic.faults.error_every = 2;
    (0..4).for_each(|_| bench.arrive(&packet(UDP, (1, 2), 40)));
    let errors: Vec<bool> = (0..4).map(|slot| rx::RXE.is_set(bench.rx_words(0, slot)[2])).collect();
    assert_eq!(errors, [false, true, false, true]);
}

#[test]
fn the_same_calls_have_the_same_results() {
    let run = || {
        let mut bench = Bench::started(4);
        bench.write(&MRQC, 0, MRQC::MRQE.with(1) | MRQC::RSS_IPV4_UDP.mask);
        for i in 0..40 {
            let frame = packet(UDP, (i, 53), usize::from(i) * 7);
            bench.arrive(&frame);
            bench.transmit(u32::from(i) % 4, &[(&frame, data(frame.len(), LAST, 0))]);
            bench.now += 3;
        }
        (bench.memory.bytes.clone(), bench.sent.clone(), bench.interrupts.clone(), format!("{:?}", bench.nic))
    };
    assert!(run() == run());
}
