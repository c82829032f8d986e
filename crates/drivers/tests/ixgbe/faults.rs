//! A NIC that fails while it runs: a counter or a named error, never a hang, a panic or a lost frame.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bywash_drivers::ixgbe::{Multicast, Settings};
use bywash_drivers::port::RxQueue;
use bywash_drivers::port::frame::{Batch, Pool};
use bywash_models::ixgbe::Faults;
use bywash_models::world::Shared;
use bywash_sys::worker::{HEARTBEAT_NS, Idle, Placement, Stop, Task, Turn, Worker};

use crate::bed::{End, PATIENCE, end, frame, memory, no_violations, packet, quiet, world};

fn looped() -> Settings {
    Settings { loopback: true, ring: 128, ..quiet() }
}

fn send(end: &mut End, count: u8, len: usize, pool: &mut Pool) {
    let packets: Vec<_> = (0..count).map(|i| packet(&frame(i, len), 2048, pool)).collect();
    end.send(packets, pool);
}

#[test]
fn damaged_packets_are_counted_and_dropped() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.receive(0, &mut pool);
    end.set_faults(Faults { error_every: 4, ..Faults::default() });
    send(&mut end, 40, 100, &mut pool);
    assert_eq!(end.received(&mut pool).len(), 30);
    assert_eq!(end.rx[0].counters().errors, 10);
    // Of three descriptors each.
    end.set_faults(Faults { error_every: 3, ..Faults::default() });
    let packets: Vec<_> = (0..9).map(|i| packet(&frame(i, 5000), 2048, &mut pool)).collect();
    end.send(packets, &mut pool);
    assert_eq!(end.received(&mut pool).len(), 6);
    assert_eq!(end.rx[0].counters().errors, 13);
    end.set_faults(Faults::default());
    end.close(&mut pool).unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (4096, 0));
}

#[test]
fn lengths_beyond_the_buffer_are_not_believed() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.receive(0, &mut pool);
    end.set_faults(Faults { overlong_every: 2, ..Faults::default() });
    send(&mut end, 20, 300, &mut pool);
    let received = end.received(&mut pool);
    assert!(received.len() == 10 && received.iter().all(|bytes| bytes.len() == 300));
    let packets: Vec<_> = (0..8).map(|i| packet(&frame(i, 4500), 2048, &mut pool)).collect();
    end.send(packets, &mut pool);
    assert_eq!(end.received(&mut pool).len(), 4);
    assert_eq!(end.rx[0].counters().errors, 14);
    end.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 4096);
}

#[test]
fn packets_of_no_bytes_are_none() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.receive(0, &mut pool);
    end.set_faults(Faults { empty_every: 5, ..Faults::default() });
    send(&mut end, 40, 300, &mut pool);
    let received = end.received(&mut pool);
    assert!(received.len() == 32 && received.iter().all(|bytes| bytes.len() == 300));
    assert_eq!(end.rx[0].counters().errors, 8);
    end.close(&mut pool).unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (4096, 0));
}

#[test]
fn a_link_that_goes_down_in_traffic_is_counted_and_comes_back() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let watched = Settings { watch: Some(Duration::from_millis(5)), ..quiet() };
    let mut far = end(&world, 1, &watched, arena);
    far.receive(0, &mut pool);
    send(&mut near, 10, 100, &mut pool);
    assert_eq!(far.received(&mut pool).len(), 10);
    far.set_faults(Faults { no_link: true, ..Faults::default() });
    world.step();
    assert!(!far.port.link().up);
    std::thread::sleep(Duration::from_millis(50));
    send(&mut near, 10, 100, &mut pool);
    assert_eq!(far.received(&mut pool).len(), 0);
    far.set_faults(Faults::default());
    assert_eq!(far.port.wait_for_link(Duration::from_secs(5)).unwrap().mbps, Some(10_000));
    send(&mut near, 10, 100, &mut pool);
    assert_eq!(far.received(&mut pool).len(), 10);
    assert_eq!(far.counter("link_losses"), 1);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn a_filter_that_cannot_be_changed_leaves_the_receiver_running() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.receive(0, &mut pool);
    end.set_faults(Faults { security_never_ready: true, ..Faults::default() });
    let error = end.port.set_filter(true, Multicast::None).unwrap_err().to_string();
    assert!(error.starts_with("SECRXSTAT[0] is 0x00000000 after 4"), "{error}");
    send(&mut end, 5, 100, &mut pool);
    assert_eq!(end.received(&mut pool).len(), 5);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_transmitter_that_hangs_keeps_its_packets_until_the_queue_is_closed() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.set_faults(Faults { transmitter_hangs: true, ..Faults::default() });
    let mut batch = Batch::new();
    let mut sent = 0;
    for _ in 0..4 {
        while batch.room() > 0 {
            batch.push(packet(&frame(0, 64), 2048, &mut pool));
        }
        sent += end.tx[0].tx(&mut pool, &mut batch);
        end.tx[0].flush(&mut pool);
    }
    assert_eq!((sent, end.tx[0].in_flight(), end.tx[0].counters().packets), (127, 127, 0));
    pool.give_batch(&mut batch);
    end.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 4096);
    no_violations(&world, 1);
}

#[test]
fn lost_and_spurious_interrupts_do_no_harm() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.receive(0, &mut pool);
    end.set_faults(Faults { spurious_every: 1, ..Faults::default() });
    for _ in 0..100 {
        end.rx[0].arm();
        assert!(end.received(&mut pool).is_empty());
    }
    end.set_faults(Faults { no_interrupts: true, ..Faults::default() });
    assert!(end.rx[0].arm());
    send(&mut end, 5, 100, &mut pool);
    // The worker wakes by its own clock and finds them.
    assert_eq!(end.received(&mut pool).len(), 5);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

/// A worker's task: it receives, and says each time that it did.
struct Sleeper {
    rx: Box<dyn RxQueue>,
    pool: Pool,
    turns: u32,
    told: Sender<usize>,
}

impl Task for Sleeper {
    fn turn(&mut self) -> Turn {
        self.turns += 1;
        let mut batch = Batch::new();
        let count = self.rx.rx(&mut self.pool, &mut batch);
        self.pool.give_batch(&mut batch);
        if count == 0 {
            return Turn::Idle;
        }
        self.told.send(count).unwrap();
        Turn::Busy
    }

    fn arm(&mut self) -> bool {
        self.rx.arm()
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.rx.wake_fd());
    }

    fn next_deadline(&self, _: u64) -> Option<u64> {
        None
    }
}

/// How long a packet that is sent to a sleeping worker waits for it.
fn waits(end: &mut End, world: &Shared, told: &Receiver<usize>, pool: &mut Pool) -> Duration {
    // It has gone to sleep by then.
    std::thread::sleep(Duration::from_millis(20));
    let sent = Instant::now();
    send(end, 1, 100, pool);
    loop {
        world.step();
        match told.recv_timeout(Duration::from_millis(1)) {
            Ok(count) => assert_eq!(count, 1),
            Err(_) => {
                assert!(sent.elapsed() < PATIENCE, "the worker sleeps on");
                continue;
            }
        }
        return sent.elapsed();
    }
}

#[test]
fn a_sleeping_worker_gets_its_packets_though_the_interrupt_was_lost() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    let (told, hears) = channel();
    let mut own = arena.pool(0).unwrap();
    own.give_many(pool.take_many(2048).collect::<Vec<_>>().into_iter());
    let task = Sleeper { rx: end.rx.remove(0), pool: own, turns: 0, told };
    let placement = Placement { name: "sleeper".into(), core: None, idle: Idle::Sleep };
    let stop = Stop::new().unwrap();
    let worker = Worker::spawn(placement, stop.clone(), task, |_| ()).map_err(|(_, error)| error).unwrap();
    let woken: Duration = (0..5).map(|_| waits(&mut end, &world, &hears, &mut pool)).min().unwrap();
    end.set_faults(Faults { no_interrupts: true, ..Faults::default() });
    let waited: Vec<_> = (0..5).map(|_| waits(&mut end, &world, &hears, &mut pool)).collect();
    end.set_faults(Faults::default());
    stop.set();
    let (task, result) = worker.join().unwrap();
    result.unwrap();
    let heartbeat = Duration::from_nanos(HEARTBEAT_NS);
    // With the interrupt at once; without it when the worker looks by its own clock. It has slept, not looked all the time.
    assert!(woken < heartbeat / 4, "{woken:?}");
    assert!(waited.iter().max().is_some_and(|most| *most > heartbeat / 4), "{waited:?}");
    assert!(waited.iter().all(|time| *time < heartbeat + Duration::from_secs(1)), "{waited:?}");
    assert!(task.turns < 1000, "{} turns", task.turns);
    let Sleeper { rx, pool: mut own, .. } = task;
    rx.close(&mut own);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn a_device_that_is_pulled_out_ends_nothing_but_itself() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &looped(), arena);
    end.receive(0, &mut pool);
    send(&mut end, 5, 100, &mut pool);
    end.set_faults(Faults { removed: true, ..Faults::default() });
    assert_eq!(end.received(&mut pool).len(), 5, "what had arrived before");
    let mut batch = Batch::new();
    (0..20).for_each(|i| batch.push(packet(&frame(i, 64), 2048, &mut pool)));
    end.tx[0].tx(&mut pool, &mut batch);
    end.tx[0].flush(&mut pool);
    assert!(end.received(&mut pool).is_empty());
    assert_eq!((end.tx[0].in_flight(), end.counter("device_gone")), (20, 1));
    assert!(!end.port.link().up);
    let errors = end.close(&mut pool).unwrap_err();
    assert!(errors[0].starts_with("the device is gone"), "{errors:?}");
    // Nobody knows whether it still writes: the frames that it had are not used again.
    assert_eq!((pool.free(), arena.orphaned()), (4096 - 128 - 20, 0));
}
