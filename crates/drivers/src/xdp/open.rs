//! Opening an `xdp:` port: look, refuse what must not be, then attach, bind and steer; on failure nothing is left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_frame::{Arena, FRAME_DATA, Ledger, Pool, Stride};
use bywash_port::{Capabilities, OpenError, PortName, QueueChoice, QueuePair, RxQueue, TxQueue};
use bywash_sys::bpf::{Link, LoadError, Program, XdpMode};
use bywash_sys::ethtool::Ethtool;
use bywash_sys::route::{self, Route};
use bywash_sys::xsk::{CopyMode, Socket};
use rustix::io::Errno;

use super::bind::{self, BindError, Bound, Plan};
use super::busy::Deferral;
use super::life::Life;
use super::program::{self, Maps};
use super::{Attach, Options, XdpPort, guard, rx, tx};

/// Ethernet header and two VLAN tags, bytes.
const HEADERS: usize = 22;

/// Highest MTU whose packets fit one frame, bytes.
pub(super) const MAX_SINGLE_MTU: usize = FRAME_DATA - HEADERS;

/// How long a link may be gone after attaching or binding: some drivers restart it.
const CARRIER: Duration = Duration::from_secs(10);

/// Opens `interface`, all its queues or the one that is chosen, with frames of `arena`.
///
/// # Errors
/// [`OpenError`]: what is wrong, why, and what to do. Nothing was changed then.
pub fn open(
    interface: &str,
    choice: QueueChoice,
    options: &Options,
    arena: &'static Arena,
) -> Result<XdpPort, OpenError> {
    let name = PortName::Xdp { interface: interface.into(), queues: choice };
    Opening::look(interface, choice, options, arena)
        .and_then(|opening| opening.open(name.clone()))
        .map_err(|reason| OpenError { port: name, reason })
}

/// What was found out about the interface before anything is changed.
struct Opening<'a> {
    options: &'a Options,
    arena: &'static Arena,
    interface: route::Link,
    /// Queues to open, and what they have.
    queues: Vec<Halves>,
    /// Receive queues of the whole interface.
    rx_queues: u32,
    multi_buffer: bool,
    link_mbps: Option<u32>,
    route: Route,
}

#[derive(Clone, Copy)]
struct Halves {
    queue: u32,
    rx: bool,
    tx: bool,
}

impl<'a> Opening<'a> {
    fn look(
        interface: &str,
        choice: QueueChoice,
        options: &'a Options,
        arena: &'static Arena,
    ) -> Result<Self, String> {
        let tx = options.tx && !choice.rx_only;
        if !options.ring_size.is_power_of_two() || options.ring_size > 1 << 20 {
            return Err(format!("a ring of {} packets: it must be a power of two", options.ring_size));
        }
        let mut route = Route::open().map_err(|error| error.to_string())?;
        let link = find(&mut route, interface)?;
        let ethtool = Ethtool::open().map_err(|error| error.to_string())?;
        // Drivers with one queue may not tell.
        let (rx_queues, tx_queues) = match ethtool.channels(interface) {
            Ok(channels) => (channels.rx, channels.tx),
            Err(_) => (link.rx_queues, link.tx_queues),
        };
        let queues = choose(choice, options, tx, (rx_queues, tx_queues), interface)?;
        let multi_buffer = multi_buffer(&link, options, arena.stride())?;
        let link_mbps = ethtool.speed(interface).ok().flatten();
        let opening =
            Self { options, arena, interface: link, queues, rx_queues, multi_buffer, link_mbps, route };
        opening.refuse_everything()
    }

    /// All packets of an interface that the machine is reached by are taken only on demand.
    fn refuse_everything(mut self) -> Result<Self, String> {
        let everything = self.options.only.is_none()
            && self.queues.iter().filter(|halves| halves.rx).count() >= self.rx_queues as usize;
        if !everything || self.options.force || self.rx_queues == 0 {
            return Ok(self);
        }
        match guard::reason_to_refuse(&mut self.route, &self.interface) {
            Ok(None) => Ok(self),
            Ok(Some(reason)) => Err(format!(
                "taking all packets of {} would cut the machine off: {reason}; take a part (--only 'udp port 53', say), \
                 or all with --force",
                self.interface.name
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn open(mut self, name: PortName) -> Result<XdpPort, String> {
        let mut warnings = Vec::new();
        let takes = self.queues.iter().any(|halves| halves.rx);
        let (maps, mut link, mut generic) = if takes {
            let maps = Maps::create(self.rx_queues).map_err(|error| error.to_string())?;
            let program = program::load(&maps).map_err(|error: LoadError| error.to_string())?;
            let (link, mode) = self.attach(&program, &mut warnings)?;
            (Some(Arc::new(maps)), Some(link), mode == XdpMode::Generic)
        } else {
            (None, None, self.options.attach == Attach::Generic)
        };
        let mut pool = self.stock()?;
        let bound = self.bind_all(generic, &mut pool)?;
        drop(pool);
        let zero_copy = bound.iter().all(|(_, bound)| bound.zero_copy);
        if zero_copy && link.is_none() {
            // Drivers of Intel's refuse to send without copies while no XDP program is attached.
            let program = program::load_pass().map_err(|error| error.to_string())?;
            let (pass, mode) = self.attach(&program, &mut warnings)?;
            (link, generic) = (Some(pass), mode == XdpMode::Generic);
        }
        self.warn(&bound, zero_copy, &mut warnings);
        let polls = self.options.busy_poll.is_some() && bound.iter().all(|(_, bound)| bound.polls);
        let deferral = polls.then(|| Deferral::set(&self.interface, &mut warnings));
        self.wait_for_carrier(&mut warnings);
        let capabilities = self.capabilities(zero_copy, generic, link.is_some());
        let (queues, lives) = self.hand_out(bound, maps.as_ref(), &capabilities)?;
        let mac = self.interface.mac.map(|mac| mac.0);
        Ok(XdpPort { name, mac, capabilities, warnings, queues, lives, maps, link, deferral })
    }

    /// Attaches in the driver, else, if the user leaves it to us, in the kernel's stack.
    fn attach(&mut self, program: &Program, warnings: &mut Vec<String>) -> Result<(Link, XdpMode), String> {
        let interface = self.interface.name.clone();
        let modes: &[XdpMode] = match self.options.attach {
            Attach::Auto => &[XdpMode::Native, XdpMode::Generic],
            Attach::Native => &[XdpMode::Native],
            Attach::Generic => &[XdpMode::Generic],
        };
        let mut why = String::new();
        for &mode in modes {
            match Link::xdp(program, self.interface.index, mode) {
                Ok(link) => {
                    if !why.is_empty() {
                        warnings.push(format!(
                            "generic XDP on {interface}, an order slower: native is refused ({why}); another driver, \
                             fewer queues or a lower MTU may help"
                        ));
                    }
                    return Ok((link, mode));
                }
                Err(error)
                    if error.is(Errno::BUSY.raw_os_error()) || error.is(Errno::EXIST.raw_os_error()) =>
                {
                    return Err(self.who_is_there());
                }
                Err(error) if error.is(Errno::PERM.raw_os_error()) => return Err(error.to_string()),
                Err(error) => why = error.source.to_string(),
            }
        }
        Err(format!("no XDP program can be attached to {interface}: {why}"))
    }

    /// The program that has the interface already.
    fn who_is_there(&mut self) -> String {
        let interface = &self.interface.name;
        let id = self.route.link(interface).ok().flatten().and_then(|link| link.xdp.first());
        let Some(id) = id else {
            return format!("another XDP program is attached to {interface}: stop who attached it");
        };
        let named = Program::by_id(id).and_then(|program| program.info()).map(|info| info.name);
        let called = named.map_or_else(|_| String::new(), |name| format!(" '{name}'"));
        format!(
            "the XDP program {id}{called} is attached to {interface}: stop who attached it, or \
             `ip link set dev {interface} xdp off`"
        )
    }

    /// Frames for all FILL rings.
    fn stock(&self) -> Result<Pool, String> {
        let rings =
            self.queues.iter().filter(|halves| halves.rx || self.options.copy != CopyMode::Copy).count();
        let frames = rings * self.options.ring_size as usize;
        self.arena.pool(frames).map_err(|error| {
            format!(
                "{rings} rings of {} packets must be filled: {error}, or smaller rings",
                self.options.ring_size
            )
        })
    }

    fn bind_all(&self, generic: bool, pool: &mut Pool) -> Result<Vec<(Halves, Bound)>, String> {
        let mut bound: Vec<(Halves, Bound)> = Vec::with_capacity(self.queues.len());
        let mut mode = match self.options.copy {
            // A packet that generic XDP sees has been copied already.
            CopyMode::Auto if generic => CopyMode::Copy,
            CopyMode::ZeroCopy if generic => {
                return Err(format!("zero-copy needs native XDP, which {} refuses", self.interface.name));
            }
            CopyMode::Auto => CopyMode::ZeroCopy,
            chosen => chosen,
        };
        for &halves in &self.queues {
            let plan = self.plan(halves);
            let first: Option<Arc<Socket>> = bound.first().map(|(_, first)| first.socket.clone());
            let mut result = bind::bind(&plan, mode, first.as_deref(), self.arena, pool);
            let retry = |error: &BindError| error.is_no_zero_copy();
            if first.is_none()
                && self.options.copy == CopyMode::Auto
                && result.as_ref().err().is_some_and(retry)
            {
                mode = CopyMode::Copy;
                result = bind::bind(&plan, mode, None, self.arena, pool);
            }
            match result {
                Ok(queue) => bound.push((halves, queue)),
                Err(error) => {
                    let why = error.explain(&self.interface.name, &plan, mode, self.arena.bytes());
                    drop(first);
                    for (_, queue) in bound {
                        release(queue, pool);
                    }
                    return Err(why);
                }
            }
        }
        Ok(bound)
    }

    fn plan(&self, halves: Halves) -> Plan {
        Plan {
            interface: self.interface.index,
            queue: halves.queue,
            ring_size: self.options.ring_size,
            rx: halves.rx,
            tx: halves.tx,
            multi_buffer: self.multi_buffer,
            busy_poll: self.options.busy_poll.map(|poll| (poll.micros, poll.budget)),
        }
    }

    fn warn(&self, bound: &[(Halves, Bound)], zero_copy: bool, warnings: &mut Vec<String>) {
        let interface = &self.interface.name;
        if !zero_copy && self.options.copy == CopyMode::Auto {
            warnings.push(format!(
                "copy mode on {interface}, about 1 to 3 million packets/s for each core: its driver has no zero-copy"
            ));
        }
        if !bound.iter().all(|(_, bound)| bound.large_budget) && !zero_copy {
            warnings.push("32 packets for each system call when sending: more takes Linux 6.17".into());
        }
        if self.options.busy_poll.is_some() && !bound.iter().all(|(_, bound)| bound.polls) {
            warnings.push(format!(
                "busy polling has no effect on {interface}: its driver gives its queues no NAPI id; leave it out, and \
                 keep the worker off the core that takes the interrupts"
            ));
        }
    }

    /// Early packets are lost while a link restarts, and nobody would know why.
    fn wait_for_carrier(&mut self, warnings: &mut Vec<String>) {
        if !self.interface.running {
            return;
        }
        let deadline = Instant::now() + CARRIER;
        loop {
            match self.route.link(&self.interface.name) {
                Ok(Some(link)) if !link.running && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(Some(link)) if link.running => return,
                _ => {
                    warnings.push(format!("{} lost its link when it was opened", self.interface.name));
                    return;
                }
            }
        }
    }

    fn capabilities(&self, zero_copy: bool, generic: bool, attached: bool) -> Capabilities {
        let mut mode = vec![if zero_copy { "zero-copy" } else { "copy" }];
        if attached {
            mode.push(if generic { "generic XDP" } else { "native XDP" });
        }
        if self.multi_buffer {
            mode.push("multi-buffer");
        }
        Capabilities {
            max_len: self.interface.mtu as usize + HEADERS,
            chains: self.multi_buffer,
            zero_copy,
            mode,
            link_mbps: self.link_mbps,
            ..Capabilities::default()
        }
    }

    fn hand_out(
        &self,
        bound: Vec<(Halves, Bound)>,
        maps: Option<&Arc<Maps>>,
        capabilities: &Capabilities,
    ) -> Result<(Vec<QueuePair>, Vec<Arc<Life>>), String> {
        let (mut pairs, mut lives) = (Vec::new(), Vec::new());
        for (Halves { queue, .. }, bound) in bound {
            let Bound { rings, socket, probe, filled, polls, .. } = bound;
            let halves = u8::from(rings.rx.is_some()) + u8::from(rings.tx.is_some());
            let maps = maps.filter(|_| rings.rx.is_some());
            let life = Arc::new(Life::new(queue, halves, socket.clone(), probe, maps.cloned()));
            let mut filled = Some(filled);
            let rx = match (rings.rx, maps) {
                (Some(ring), Some(maps)) => {
                    let beat = maps.beat(queue).map_err(|error| error.to_string())?;
                    maps.add_socket(queue, &socket).map_err(|error| error.to_string())?;
                    let ledger = filled.take().unwrap_or_else(|| Ledger::new(self.arena));
                    let (socket, life) = (socket.clone(), life.clone());
                    let parts =
                        rx::Parts { ring, fill: rings.fill, ledger, socket, life, beat, busy_poll: polls };
                    Some(Box::new(rx::Rx::new(parts)) as Box<dyn RxQueue>)
                }
                _ => None,
            };
            if let Some(ledger) = filled {
                life.keep(ledger);
            }
            let tx = rings.tx.map(|ring| {
                Box::new(tx::Tx::new(tx::Parts {
                    ring,
                    completion: rings.completion,
                    ledger: Ledger::new(self.arena),
                    socket,
                    life: life.clone(),
                    busy_poll: polls,
                    zero_copy: capabilities.zero_copy,
                    max_len: capabilities.max_len,
                    chains: capabilities.chains,
                })) as Box<dyn TxQueue>
            });
            pairs.push(QueuePair { rx, tx });
            lives.push(life);
        }
        Ok((pairs, lives))
    }
}

/// Takes apart a queue that was bound in vain.
fn release(queue: Bound, pool: &mut Pool) {
    let Bound { rings, socket, probe, filled, .. } = queue;
    drop(rings);
    Life::new(0, 1, socket, probe, None).close_half(filled, pool);
}

/// The interface, up and Ethernet.
fn find(route: &mut Route, interface: &str) -> Result<route::Link, String> {
    let Some(link) = route.link(interface).map_err(|error| error.to_string())? else {
        let links = route.links().unwrap_or_default();
        let names: Vec<_> =
            links.iter().filter(|link| link.ethernet).map(|link| link.name.as_str()).collect();
        let there = if names.is_empty() { "none that carries Ethernet".into() } else { names.join(", ") };
        return Err(format!("there is no interface '{interface}'; there is: {there}"));
    };
    if !link.ethernet {
        return Err(format!("{interface} does not carry Ethernet frames"));
    }
    if !link.up {
        return Err(format!("{interface} is down: `ip link set dev {interface} up`"));
    }
    Ok(link)
}

/// Which queues to open. A sending half exists only where the interface sends: on others the kernel would take packets
/// and lose them without a word.
fn choose(
    choice: QueueChoice,
    options: &Options,
    tx: bool,
    (rx_queues, tx_queues): (u32, u32),
    interface: &str,
) -> Result<Vec<Halves>, String> {
    let count = rx_queues.max(tx_queues);
    let range = match choice.queue.map(u32::from) {
        Some(queue) if queue >= count => {
            let last = count.saturating_sub(1);
            return Err(format!("{interface} has no queue {queue}: its queues are 0 to {last}"));
        }
        Some(queue) => queue..queue + 1,
        None => 0..count.min(options.max_queues.map_or(u32::MAX, u32::from)),
    };
    let queues: Vec<_> = range
        .map(|queue| Halves { queue, rx: options.rx && queue < rx_queues, tx: tx && queue < tx_queues })
        .filter(|halves| halves.rx || halves.tx)
        .collect();
    if queues.is_empty() {
        return Err(format!(
            "{interface} has no queue for what is wanted: {rx_queues} receive, {tx_queues} send"
        ));
    }
    Ok(queues)
}

/// Whether packets may have several frames.
fn multi_buffer(link: &route::Link, options: &Options, stride: Stride) -> Result<bool, String> {
    let (interface, mtu) = (&link.name, link.mtu as usize);
    let needed = mtu > MAX_SINGLE_MTU;
    let cure =
        format!("set it to {MAX_SINGLE_MTU} or less (`ip link set dev {interface} mtu {MAX_SINGLE_MTU}`)");
    let too_long = mtu + HEADERS > tx::MAX_FRAMES * FRAME_DATA;
    match (options.multi_buffer.unwrap_or(needed), stride) {
        _ if too_long && options.rx => {
            Err(format!("the MTU of {interface} is {mtu}, more than {} frames hold: {cure}", tx::MAX_FRAMES))
        }
        (false, _) if needed => Err(format!(
            "the MTU of {interface} is {mtu} and a frame holds one of {MAX_SINGLE_MTU}: {cure}, or allow packets of several frames"
        )),
        (true, Stride::Aligned) => Err(format!(
            "packets of several frames need packed frames, not 4096 bytes apart; the MTU of {interface} is {mtu}: {cure}"
        )),
        (multi_buffer, _) => Ok(multi_buffer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        choice: QueueChoice,
        options: &Options,
        counts: (u32, u32),
    ) -> Result<Vec<(u32, bool, bool)>, String> {
        let queues = choose(choice, options, options.tx && !choice.rx_only, counts, "eth1")?;
        Ok(queues.into_iter().map(|halves| (halves.queue, halves.rx, halves.tx)).collect())
    }

    #[test]
    fn a_half_is_opened_only_where_the_interface_has_one() {
        let (all, options) = (QueueChoice::default(), Options::default());
        assert_eq!(chosen(all, &options, (1, 2)).unwrap(), [(0, true, true), (1, false, true)]);
        assert_eq!(chosen(all, &options, (2, 1)).unwrap(), [(0, true, true), (1, true, false)]);
        let send = Options { rx: false, ..options.clone() };
        assert_eq!(chosen(all, &send, (4, 1)).unwrap(), [(0, false, true)]);
        let two = Options { max_queues: Some(2), ..options };
        assert_eq!(chosen(all, &two, (4, 4)).unwrap(), [(0, true, true), (1, true, true)]);
    }

    #[test]
    fn a_chosen_queue_is_opened_alone() {
        let options = Options::default();
        let one = |queue, rx_only| QueueChoice { queue: Some(queue), rx_only };
        assert_eq!(chosen(one(3, false), &options, (4, 4)).unwrap(), [(3, true, true)]);
        assert_eq!(chosen(one(3, true), &options, (4, 4)).unwrap(), [(3, true, false)]);
        assert!(chosen(one(4, false), &options, (4, 4)).unwrap_err().contains("0 to 3"));
        assert!(chosen(one(3, true), &options, (1, 4)).unwrap_err().contains("1 receive, 4 send"));
    }

    #[test]
    fn chains_are_used_when_the_mtu_wants_them() {
        let link = |mtu| route::Link { name: "eth1".into(), mtu, ..route::Link::default() };
        let with = |mtu, wish, stride| {
            multi_buffer(&link(mtu), &Options { multi_buffer: wish, ..Options::default() }, stride)
        };
        assert_eq!(with(1500, None, Stride::Packed), Ok(false));
        assert_eq!(with(2026, None, Stride::Packed), Ok(false));
        assert_eq!(with(2027, None, Stride::Packed), Ok(true));
        assert_eq!(with(1500, Some(true), Stride::Packed), Ok(true));
        assert!(with(2027, Some(false), Stride::Packed).unwrap_err().contains("mtu 2026"));
        assert!(with(9000, None, Stride::Aligned).unwrap_err().contains("packed"));
        assert!(with(65_521, None, Stride::Packed).unwrap_err().contains("18 frames"));
    }
}
