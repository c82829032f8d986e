//! What leaves an instance where more is to leave than its queues and its frames hold.

use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::stack::frame::Arena;
use bywash_engine::stack::{Control, InterfaceId, Prefix, Timestamp};
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Handle, Instance, Options};

/// Waits until the instance has sent so many packets.
fn has_sent(handle: &Handle, packets: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let sent: u64 = handle.figures().iter().map(|engine| engine.ports[0].1.packets).sum();
        if sent >= packets {
            return;
        }
        assert!(Instant::now() < until, "{sent} packets instead of {packets}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn more_addresses_than_the_control_has_frames_are_announced_all_of_them() {
    const ADDRESSES: u32 = 400;
    let arena = Arena::new(vec![0; 64 << 20]).unwrap();
    let port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let configure = Box::new(|control: &mut Control, now: Timestamp, ids: &[InterfaceId]| {
        for n in 1..=ADDRESSES {
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n);
            control.add_address(now, ids[0], Prefix::new(address, 8).unwrap())?;
        }
        Ok(())
    });
    let (options, stop) = (Options::default(), Stop::new().unwrap());
    let instance =
        Instance::start(vec![port], arena, &options, &stop, configure, &mut |_, _| Box::new(())).unwrap();
    // Each is announced twice (RFC 5227, 2.3), without anything that would bring the control a frame.
    has_sent(&instance.handle(), u64::from(2 * ADDRESSES));
    let lost = instance.handle().control(|control, _| control.counters().no_memory).unwrap();
    assert_eq!((lost, instance.close().errors), (0, Vec::new()));
}
