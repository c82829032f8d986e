//! Ports whose interface goes away while an instance runs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_engine::port::{Capabilities, Counter, Port, PortName, QueuePair};
use bywash_engine::stack::frame::Arena;
use bywash_engine::sys::worker::Stop;
use bywash_engine::{Instance, Options};

/// A port whose interface is deleted when somebody says so.
struct Doomed {
    port: Box<dyn Port>,
    gone: Arc<AtomicBool>,
}

impl Port for Doomed {
    fn name(&self) -> &PortName {
        self.port.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.port.mac()
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        self.port.queues()
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter::state("interface_gone", self.gone.load(Ordering::Relaxed))]
    }

    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        self.port.close()
    }
}

/// An instance without a program on so many ports, and what makes the interface of each go.
fn running(count: usize) -> (Instance, Vec<Arc<AtomicBool>>) {
    let arena = Arena::new(vec![0; 16 << 20]).unwrap();
    let gone: Vec<Arc<AtomicBool>> = (0..count).map(|_| Arc::default()).collect();
    let doomed = gone.iter().map(|gone| {
        let port = open(&"null:".parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
        Box::new(Doomed { port, gone: gone.clone() }) as Box<dyn Port>
    });
    let (options, stop) = (Options::default(), Stop::new().unwrap());
    let (configure, program) = (Box::new(|_: &mut _, _, _: &[_]| Ok(())), &mut |_, _| Box::new(()) as _);
    (Instance::start(doomed.collect(), arena, &options, &stop, configure, program).unwrap(), gone)
}

#[test]
fn an_instance_without_a_port_ends_and_says_why() {
    let (instance, gone) = running(1);
    let handle = instance.handle();
    assert_eq!(handle.gone(), [None]);
    let began = Instant::now();
    let end = std::thread::spawn(move || instance.run());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!end.is_finished());
    gone[0].store(true, Ordering::Relaxed);
    assert_eq!(end.join().unwrap().unwrap_err().0, ["the interface of null: is gone"]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((handle.gone(), handle.port_counters()), (Vec::new(), Vec::new()), "it has ended");
}

#[test]
fn an_instance_goes_on_with_the_ports_that_are_left_and_says_at_the_end_what_has_gone() {
    let (instance, gone) = running(2);
    gone[1].store(true, Ordering::Relaxed);
    assert!(!instance.wait(Duration::from_millis(1200)));
    let sentence = "the interface of null: is gone";
    assert_eq!(instance.handle().gone(), [None, Some(sentence.to_owned())]);
    assert_eq!(instance.handle().port_counters()[1], [Counter::state("interface_gone", true)]);
    assert_eq!(instance.close().errors, [sentence]);
}
