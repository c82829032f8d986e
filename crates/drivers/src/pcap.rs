//! `pcap:FILE`, a capture file as a port: where packets come from it is read, where they go it is written.
//!
//! A file is read as fast as its packets are taken, and its queue has ended when it has: times in it become the packets'
//! timestamps and nothing more (`bywash replay` is what keeps to them). The worker itself waits for the disk then; it
//! reads ahead in large pieces. From a pipe come the packets that are there, and nobody waits in it for more. Files are written as pcapng when they are called `.pcapng`, else as pcap, both with
//! nanoseconds, by a thread of their own: a disk that is too slow makes the port take no more packets, as a NIC whose
//! ring is full. Packets are copied in either direction.

mod sink;
mod source;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bywash_frame::{FRAME_DATA, MAX_FRAMES};
use bywash_pcap::{Format, Interface, Link, MAX_PACKET, Reader, Statistics};
use bywash_port::{Capabilities, Counter, Port, PortName, QueuePair};
use bywash_sys::clock;
use bywash_sys::intake::Intake;
use bywash_sys::spool::{Plan, Producer, Rotation, Spool, Target, Written};

use crate::OpenOptions;
use sink::PcapTx;
use source::PcapRx;

/// Memory for packets on their way to the disk.
const MEMORY: usize = 64 << 20;

/// What a file is called that is standard input or output.
const STDIO: &str = "-";

/// Opens `pcap:file`, to be read or to be written as the options say.
///
/// # Errors
/// In one line what was wrong, why, and what to do.
pub fn open(file: &str, options: &OpenOptions) -> Result<PcapPort, String> {
    if options.ring.is_some() {
        return Err("a file has no ring; leave --ring out".into());
    }
    let name = PortName::Pcap { file: file.into() };
    let shared = Arc::new(Shared::default());
    let mut port =
        PcapPort { name, capabilities: capabilities(), reader: None, sinks: Vec::new(), spool: None, shared };
    match (options.rx_only, options.tx_only) {
        (true, false) if options.queues.is_some_and(|queues| queues > 1) => {
            return Err("a file is read by one queue; leave --queues out".into());
        }
        (true, false) => port.reader = Some(reader(file)?),
        (false, true) => {
            let (spool, sinks) = writer(file, options.queues.unwrap_or(1))?;
            (port.spool, port.sinks) = (Some(spool), sinks);
        }
        _ => return Err("a file is read or written, not both: give it a partner (A B: from A to B)".into()),
    }
    Ok(port)
}

fn capabilities() -> Capabilities {
    Capabilities {
        max_len: MAX_PACKET,
        tx_checksum: false,
        segmentation: false,
        chains: true,
        zero_copy: false,
        mode: vec!["copy"],
        link_mbps: None,
        sent: None,
    }
}

type Source = Reader<Intake>;

fn reader(file: &str) -> Result<Source, String> {
    let open = || {
        let opened = if file == STDIO { Intake::stdin() } else { Intake::open(Path::new(file)) };
        opened.map_err(|error| format!("it can't be read: {error}"))
    };
    let mut first = Reader::new(open()?).map_err(|error| error.to_string())?;
    // Of what can't be opened again nothing may be lost to a look.
    if file == STDIO || !first.source().is_file() {
        return Ok(first);
    }
    // The first packet tells what the others are; what is different later is left out and counted.
    match first.next_record() {
        Ok(Some(record)) if record.link != Link::ETHERNET => {
            Err(format!("its packets begin with {}, and only Ethernet can be sent", record.link))
        }
        // That it is broken later is told later.
        _ => Reader::new(open()?).map_err(|error| error.to_string()),
    }
}

fn writer(file: &str, queues: u16) -> Result<(Spool, Vec<PcapTx>), String> {
    let format = Format::of_name(file.as_ref());
    let start = clock::realtime();
    let statistics = move |_: &Written| {
        let times = Statistics { start, end: clock::realtime(), ..Statistics::default() };
        format.statistics(&times)
    };
    let plan = Plan {
        target: if file == STDIO { Target::Stdout } else { Target::File(file.into()) },
        rotation: Rotation::default(),
        header: format.file_header(&Interface::named("bywash")),
        record_len: Box::new(move |bytes| format.record_len_at(bytes)),
        trailer: Box::new(statistics),
        waits_for_reader: true,
        producers: queues.into(),
        memory: MEMORY,
    };
    let (spool, producers) = Spool::start(plan).map_err(|error| error.to_string())?;
    Ok((spool, producers.into_iter().map(|producer: Producer| PcapTx::new(producer, format)).collect()))
}

/// What queues tell their port.
#[derive(Debug, Default)]
struct Shared {
    /// Packets of a link type other than Ethernet, or too short for it.
    not_ethernet: AtomicU64,
    /// Packets that are longer than any can be here.
    too_long: AtomicU64,
    /// Packets for which there were too few frames.
    no_frames: AtomicU64,
    /// Packets of which the file does not have the end.
    cut: AtomicU64,
    /// Why the rest of the file was not read.
    broken: Mutex<Option<String>>,
}

impl Shared {
    /// What of the file was not given out, and why.
    fn left_out(&self) -> Option<String> {
        let longest = MAX_FRAMES * FRAME_DATA;
        let [not_ethernet, too_long, no_frames] =
            [&self.not_ethernet, &self.too_long, &self.no_frames].map(|count| count.load(Ordering::Relaxed));
        let reasons: Vec<String> = [
            (not_ethernet, "no Ethernet packets".to_owned()),
            (too_long, format!("longer than {longest} bytes, the most that is handled here")),
            (no_frames, "in want of packet memory (give more: --memory)".to_owned()),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, reason)| format!("{count} {reason}"))
        .collect();
        let count = not_ethernet + too_long + no_frames;
        (count > 0).then(|| format!("{count} packets were left out: {}", reasons.join(", ")))
    }
}

/// An opened `pcap:`.
pub struct PcapPort {
    name: PortName,
    capabilities: Capabilities,
    /// Still to be given out.
    reader: Option<Source>,
    sinks: Vec<PcapTx>,
    spool: Option<Spool>,
    shared: Arc<Shared>,
}

impl Port for PcapPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        let rx = self.reader.take().map(|reader| QueuePair {
            rx: Some(Box::new(PcapRx::new(reader, Arc::clone(&self.shared)))),
            tx: None,
        });
        let tx = std::mem::take(&mut self.sinks).into_iter();
        rx.into_iter().chain(tx.map(|sink| QueuePair { rx: None, tx: Some(Box::new(sink)) })).collect()
    }

    fn counters(&self) -> Vec<Counter> {
        let of = |name, value: &AtomicU64| Counter::count(name, value.load(Ordering::Relaxed));
        if let Some(spool) = &self.spool {
            let written = spool.written();
            return vec![
                Counter::state("reader_gone", written.is_gone),
                Counter::state("file_ended", written.failure.is_some()),
            ];
        }
        vec![
            of("rx_not_ethernet", &self.shared.not_ethernet),
            of("rx_too_long", &self.shared.too_long),
            of("rx_cut", &self.shared.cut),
        ]
    }

    /// Waits until all is written. What it says is why not all of the file was read, or written.
    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        drop(self.sinks);
        let failure = self.spool.and_then(|spool| spool.finish().failure);
        let broken = self.shared.broken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sentences: Vec<String> =
            failure.into_iter().chain(broken).chain(self.shared.left_out()).collect();
        if sentences.is_empty() { Ok(()) } else { Err(sentences) }
    }
}
