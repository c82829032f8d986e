//! The TCP/IP stack: any packets and any time between them, with a listener and a datagram socket waiting.
//!
//! Checksums are made right and acknowledgements are counted from the host's own first sequence number: by chance alone no
//! input would get past either.
#![no_main]

use std::cell::RefCell;
use std::time::Duration;

use bywash_apps::replay::Rewrite;
use bywash_frame::{Arena, Batch, FRAME_DATA, Packet, Pool, Stride};
use bywash_stack::{Event, Host, Interface, Medium, Offloads, PortId, Timestamp};
use bywash_wire::Mac;
use libfuzzer_sys::fuzz_target;

const PORT: PortId = PortId(0);

/// Packets of one input.
const PACKETS: usize = 64;

const FRAMES: usize = 1024;

thread_local! {
    // An arena lives for ever: one is enough.
    static POOL: RefCell<Pool> = RefCell::new({
        let arena = Arena::new(vec![0; Stride::Packed.memory_for(FRAMES + 64)]).expect("memory");
        arena.pool(FRAMES).expect("frames")
    });
}

fuzz_target!(|input: &[u8]| POOL.with_borrow_mut(|pool| run(input, pool)));

fn run(mut input: &[u8], pool: &mut Pool) {
    let mut now = Timestamp::from_nanos(1_000_000_000);
    let mut host = host(now, pool);
    let mut first_sequence = 0;
    let mut batch = Batch::new();
    for _ in 0..PACKETS {
        let Some((head, rest)) = input.split_first_chunk::<3>() else { break };
        let len = usize::from(u16::from_le_bytes([head[0], head[1]])).min(FRAME_DATA).min(rest.len());
        // From microseconds to a day.
        now = now + Duration::from_micros(1 << (head[2] % 37));
        let mut bytes = rest[..len].to_vec();
        input = &rest[len..];
        acknowledge(&mut bytes, first_sequence);
        Rewrite { fix_checksums: true, ..Rewrite::default() }.apply(&mut bytes, false);
        if let (false, Some(frame)) = (bytes.is_empty(), pool.take()) {
            let mut packet = Packet::new(frame);
            packet.extend_from_slice(&bytes).expect("no longer than a frame");
            batch.push(packet);
            host.receive(now, PORT, &mut batch, pool);
            pool.give_batch(&mut batch);
        }
        host.advance(now, pool);
        let events: Vec<Event> = host.stack.events().collect();
        for event in events {
            answer(&mut host, now, event, pool);
        }
        host.advance(now, pool);
        for _ in 0..16 {
            host.transmit(PORT, &mut batch);
            if batch.is_empty() {
                break;
            }
            for packet in batch.drain() {
                first_sequence = synchronised(packet.head()).unwrap_or(first_sequence);
                pool.give_packet(packet);
            }
        }
    }
}

fn host(now: Timestamp, pool: &mut Pool) -> Host {
    let mut host = Host::new([7; 16], pool);
    let medium = Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, 1]), vlan: None };
    let interface =
        Interface { name: "fuzz".into(), port: PORT, medium, mtu: 1500, offloads: Offloads::default() };
    let id = host.control.add_interface(interface).expect("the first interface");
    let prefix = "10.0.0.1/24".parse().expect("a prefix");
    host.control.add_address(now, id, prefix).expect("an address");
    host.advance(now, pool);
    host.stack.listen(None, 80, 8).expect("a listener");
    host.stack.udp_bind(None, 53).expect("a datagram socket");
    host
}

/// Does with a connection what a server does.
fn answer(host: &mut Host, now: Timestamp, event: Event, pool: &mut Pool) {
    // What comes too late for a connection is an error, and no panic.
    match event {
        Event::Readable(id) => {
            let mut bytes = [0; 4096];
            if let Ok(n) = host.stack.receive_copy(now, id, &mut bytes, pool) {
                let _ = host.stack.send(now, id, &bytes[..n], pool);
            }
        }
        Event::PeerClosed(id) => drop(host.stack.close(now, id, pool)),
        _ => {}
    }
}

/// Where the transport header of a plain TCP packet begins.
fn tcp(bytes: &[u8]) -> Option<usize> {
    match (bytes.get(12..14)?, bytes.get(14)?) {
        (&[8, 0], version) if bytes.get(23) == Some(&6) => Some(14 + usize::from(version & 15) * 4),
        (&[0x86, 0xdd], _) if bytes.get(20) == Some(&6) => Some(54),
        _ => None,
    }
}

/// Counts the acknowledgement from `first`.
fn acknowledge(bytes: &mut [u8], first: u32) {
    let Some(at) = tcp(bytes) else { return };
    if let Some(place) = bytes.get_mut(at + 8..at + 12).and_then(|place| place.first_chunk_mut::<4>()) {
        *place = u32::from_be_bytes(*place).wrapping_add(first).to_be_bytes();
    }
}

/// The sequence number of a SYN.
fn synchronised(bytes: &[u8]) -> Option<u32> {
    let tcp = bytes.get(tcp(bytes)?..)?;
    let is_syn = tcp.get(13)? & 2 != 0;
    let number = tcp.get(4..8)?.first_chunk().map(|raw| u32::from_be_bytes(*raw))?;
    is_syn.then_some(number)
}
