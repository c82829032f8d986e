//! Opening an `xdp:` port: look, refuse what must not be, then attach, bind and steer; on failure nothing is left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bywash_filter::Hook;
use bywash_frame::{Arena, FRAME_DATA, Ledger, Pool};
use bywash_port::{
    Capabilities, OpenError, PortName, QueueChoice, QueuePair, RssSpread, RxQueue, SentLen, TxQueue,
};
use bywash_sys::bpf::{Link, Program, XdpMode};
use bywash_sys::interface::{self, Interface, Topic};
use bywash_sys::route::Route;
use bywash_sys::xsk::{CopyMode, Socket};
use rustix::io::Errno;

use super::back::Back;
use super::bind::{self, Bound, Plan};
use super::busy::Deferral;
use super::guard::Guard;
use super::ingress;
use super::life::Life;
use super::load;
use super::look::{
    HEADERS, Halves, LONGEST, choose, find, judge, multi_buffer, no_native_xdp, no_zero_copy, wants_sockets,
};
use super::moving::Former;
use super::others;
use super::program::{self, Beat, Maps};
use super::samples::{Names, Ring};
use super::spread;
use super::steered::Wanted;
use super::watch::Watch;
use super::{Attach, Options, XdpPort, rx, tx, whole};
use crate::packet::PacketTx;
use crate::virtio;

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
    let open = || {
        load::check(options)?;
        let mut warnings = Vec::new();
        if let Some(at) = ingress::look(interface, choice, options)? {
            match ingress::open(&name, at, options, arena) {
                Err(why) if options.hook.is_none() => warnings.push(format!("not at TCX: {why}")),
                opened => return opened,
            }
        }
        let mut opening = Opening::look(interface, choice, options, arena)?;
        opening.warnings.extend(warnings);
        opening.open(name.clone())
    };
    open().map_err(|reason| OpenError { port: name.clone(), reason })
}

/// What was found out about the interface before anything is changed.
pub(super) struct Opening<'a> {
    pub(super) options: &'a Options,
    arena: &'static Arena,
    pub(super) interface: Interface,
    /// Queues to open, and what they have.
    pub(super) queues: Vec<Halves>,
    multi_buffer: bool,
    /// Whom it takes over from.
    pub(super) former: Option<Former>,
    /// What works, but badly.
    warnings: Vec<String>,
}

/// What was bound.
struct Queues {
    bound: Vec<(Halves, Bound)>,
    /// Why zero-copy, if it was tried, was refused.
    refused: Option<String>,
}

impl<'a> Opening<'a> {
    fn look(
        interface: &str,
        choice: QueueChoice,
        options: &'a Options,
        arena: &'static Arena,
    ) -> Result<Self, String> {
        // By rules the packets go back where they came from, not out of the interface.
        let tx = options.tx && !choice.rx_only && options.rules.is_none();
        if !options.ring_size.is_power_of_two() || options.ring_size > 1 << 20 {
            return Err(format!("a ring of {} packets: it must be a power of two", options.ring_size));
        }
        let interface = find(interface)?;
        let counts = (interface.queues.rx, interface.queues.tx);
        let queues = choose(choice, options, tx, counts, &interface.name)?;
        let takes = queues.iter().any(|halves| halves.rx);
        let warnings = judge(&interface.advice, takes, wants_sockets(options))?;
        let multi_buffer = multi_buffer(&interface, options, arena.stride())?;
        let former = None;
        Self { options, arena, interface, queues, multi_buffer, former, warnings }.refuse_everything()
    }

    /// Opens a port that takes over from another one of the same interface.
    ///
    /// # Errors
    /// What is wrong, why, and what to do. Nothing was changed then.
    pub(super) fn after(
        former: Former,
        name: &PortName,
        options: &'a Options,
        arena: &'static Arena,
    ) -> Result<XdpPort, String> {
        let PortName::Xdp { interface, queues } = name else { return Err(format!("{name} is no xdp: port")) };
        let index = former.ruled.interface();
        // It may have another name by now, and another one its own.
        let link =
            Route::open().and_then(|mut route| route.link_at(index)).map_err(|error| error.to_string())?;
        let now = link.map_or_else(|| interface.clone(), |link| link.name);
        let opening = Self::look(&now, *queues, options, arena)?;
        if opening.interface.index != index {
            return Err(format!("{now} is another interface by now"));
        }
        Self { former: Some(former), ..opening }.open(name.clone())
    }

    /// All packets of an interface that the machine is reached by are taken only on demand.
    fn refuse_everything(self) -> Result<Self, String> {
        let only = self.options.only.as_ref();
        if self.options.force || !self.takes_all_queues() || only.is_some_and(|only| !only.takes_all_kinds())
        {
            return Ok(self);
        }
        let name = &self.interface.name;
        match interface::kernel_use(name).map_err(|error| error.to_string())?.reason() {
            None => Ok(self),
            Some(reason) => Err(format!(
                "taking all packets of {name} would cut the machine off: {reason}; take a part (--only 'udp port 53', \
                 say), or all with --force"
            )),
        }
    }

    fn open(mut self, name: PortName) -> Result<XdpPort, String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        let takes = self.queues.iter().any(|halves| halves.rx);
        // Before the link, so that it goes after it, as in the port: some drivers forget all again when the program is detached.
        let steered = Arc::new(Mutex::new(self.wanted().steer(&mut warnings)?));
        let nic = || steered.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = self.rules()?;
        let mut guard = if takes { self.guard(&mut warnings)? } else { None };
        let (mut samples, mut names) = (None, Names::default());
        let (maps, ruled, mut link, mut generic) = if takes {
            let maps = self.maps(rules.is_some()).map_err(|error| error.to_string())?;
            let maps = Arc::new(if self.multi_buffer { maps.with_chains() } else { maps });
            match &self.former {
                // Who reads what it draws has done so before.
                Some(former) => names = former.names.clone(),
                None => samples = Ring::of(&maps, &names).map_err(|error| error.to_string())?,
            }
            let never_take = guard.as_ref().map(Guard::never_take);
            let (ruled, program) = self.load(&maps, rules.as_ref(), never_take, &mut warnings)?;
            if let Some((ruled, rules)) = ruled.as_ref().zip(rules.as_ref()) {
                names.add(ruled.numbered());
                guard.iter_mut().for_each(|guard| ruled.look_at_own(guard));
                self.give_to_nic(&mut nic(), ruled, rules)?;
            }
            let (link, mode) = self.attach(&program, &mut warnings)?;
            (Some(maps), ruled, Some(link), mode == XdpMode::Generic)
        } else {
            (None, None, None, self.options.attach == Attach::Generic)
        };
        let back = self.way_back(generic)?;
        let queues = self.has_all_queues().then_some(self.interface.queues.rx);
        let watch = Watch::open(&self.interface, back.as_ref().map(Back::index), queues, &steered)?;
        let watch = Arc::new(watch);
        let mut pool = self.stock()?;
        let Queues { mut bound, refused } = self.bind_all(generic, &mut pool)?;
        let zero_copy = bound.iter().all(|(_, bound)| bound.zero_copy);
        if zero_copy && link.is_none() {
            // Drivers of Intel's refuse to send without copies while no XDP program is attached.
            match program::load_pass().and_then(|program| self.attach(&program, &mut warnings)) {
                Ok((pass, mode)) => (link, generic) = (Some(pass), mode == XdpMode::Generic),
                Err(why) => return Err(release_all(bound, &mut pool, why)),
            }
        }
        self.warn(&bound, refused.as_deref(), &mut warnings);
        let takes_others = self.takes_all_queues() && !self.options.shares();
        let others = takes_others.then(|| others::receive(&self.interface, &mut warnings)).flatten();
        self.wait_for_carrier(&mut warnings);
        let confirmed = nic().confirm(&self.interface.name);
        let beats = match confirmed.and_then(|lost| {
            warnings.extend(lost);
            give(&bound, maps.as_deref(), self.options.rules.is_none())
        }) {
            Ok(beats) => beats,
            Err(why) => return Err(release_all(bound, &mut pool, why)),
        };
        drop(pool);
        let polls = self.options.busy_poll.is_some() && bound.iter().all(|(_, bound)| bound.polls);
        if self.options.busy_poll.is_some() && !polls {
            // Some queues alone would poll, and have interrupts as well.
            bound.iter_mut().for_each(|(_, bound)| bound.leave_busy_poll());
        }
        let spread = self.spread();
        let deferral = polls.then(|| Deferral::set(&self.interface.name, &mut warnings));
        let sending = if zero_copy { 0 } else { self.queues.iter().filter(|halves| halves.tx).count() };
        let wholes = whole::open(&self.interface, sending, &mut warnings);
        let mut capabilities = self.capabilities(zero_copy, generic, link.is_some());
        capabilities.segmentation = !wholes.is_empty();
        // A paravirtual NIC's packets come from another kernel, too, and generic XDP sees them before anybody has completed them.
        let unsummed = generic || self.interface.kind.is_some();
        let (queues, lives) =
            self.hand_out(bound, beats, maps.as_ref(), &capabilities, (back.as_ref(), wholes), unsummed);
        let mac = self.interface.mac.map(|mac| mac.0);
        let (ruled, steering) =
            if self.options.steer.is_empty() { (ruled.map(Arc::new), None) } else { (None, ruled) };
        Ok(XdpPort {
            name,
            hook: Hook::Xdp,
            mac,
            capabilities,
            warnings,
            queues,
            lives,
            maps,
            samples,
            names,
            guard: guard.filter(|_| ruled.is_some()),
            ruled,
            steering,
            link: link.map(Arc::new),
            way: None,
            leaving: None,
            back,
            watch,
            spread,
            deferral,
            steered,
            _others: others,
            arena: self.arena,
        })
    }

    /// What the NIC shall do.
    fn wanted(&self) -> Wanted<'_> {
        let queues = self.queues.iter().filter(|halves| halves.rx).map(|halves| halves.queue).collect();
        Wanted { interface: &self.interface, queues, options: self.options }
    }

    /// How flows come by its queues: where those are all that there are, and no rule of ours says it otherwise. Queue N of the port
    /// is the interface's then.
    fn spread(&self) -> Option<RssSpread> {
        let only_rss = self.takes_all_queues() && self.options.steer.is_empty();
        only_rss.then(|| spread::told(&self.interface.name, self.queues.len())).flatten()
    }

    /// Where packets go back to the kernel, if rules take some out.
    fn way_back(&self, generic: bool) -> Result<Option<Back>, String> {
        if self.options.rules.is_none() {
            return Ok(None);
        }
        if generic {
            return Err(format!(
                "{} has generic XDP only, which sees what is given back a second time: rules need native XDP, or TCX (--attach \
                 tcx) where no packet has to come to user space",
                self.interface.name
            ));
        }
        Back::open(&self.interface, self.queues.len()).map(Some)
    }

    /// Attaches in the driver, else, if the user leaves it to us, in the kernel's stack.
    fn attach(&self, program: &Program, warnings: &mut Vec<String>) -> Result<(Link, XdpMode), String> {
        let interface = &self.interface.name;
        let known = no_native_xdp(&self.interface.advice);
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
                        let unknown = format!(
                            "generic XDP on {interface}, an order slower: native is refused ({why}); another driver, \
                             fewer queues or a lower MTU may help"
                        );
                        warnings.push(known.map_or(unknown, Into::into));
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
        let known = known.map_or_else(String::new, |known| format!("; {known}"));
        Err(format!("no XDP program can be attached to {interface}: {why}{known}"))
    }

    /// The program that has the interface already.
    fn who_is_there(&self) -> String {
        let interface = &self.interface.name;
        let found = find(interface).map(|interface| interface.advice).unwrap_or_default();
        let program = found.into_iter().find(|finding| finding.topic == Topic::Program);
        program.map_or_else(
            || format!("another XDP program is attached to {interface}: stop who attached it"),
            |program| program.text,
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

    fn bind_all(&self, generic: bool, pool: &mut Pool) -> Result<Queues, String> {
        let mut refused = None;
        let mut bound: Vec<(Halves, Bound)> = Vec::with_capacity(self.queues.len());
        let mut mode = match self.options.copy {
            // A packet that generic XDP sees has been copied already.
            CopyMode::Auto if generic => CopyMode::Copy,
            CopyMode::ZeroCopy if generic => {
                return Err(format!("zero-copy needs native XDP, which {} refuses", self.interface.name));
            }
            CopyMode::Copy => CopyMode::Copy,
            chosen => match no_zero_copy(&self.interface, self.arena.stride()) {
                None => CopyMode::ZeroCopy,
                Some(why) if chosen == CopyMode::ZeroCopy => {
                    return Err(format!("no zero-copy on {}: {why}", self.interface.name));
                }
                Some(why) => {
                    refused = Some(why.to_owned());
                    CopyMode::Copy
                }
            },
        };
        for &halves in &self.queues {
            let plan = self.plan(halves);
            let first: Option<Arc<Socket>> = bound.first().map(|(_, first)| first.socket.clone());
            let mut result = bind::bind(&plan, mode, first.as_deref(), self.arena, pool);
            if let Err(error) = &result
                && first.is_none()
                && self.options.copy == CopyMode::Auto
                && error.is_no_zero_copy()
            {
                refused = Some(format!("its driver refuses zero-copy ({})", error.source));
                mode = CopyMode::Copy;
                result = bind::bind(&plan, mode, None, self.arena, pool);
            }
            match result {
                Ok(queue) => bound.push((halves, queue)),
                Err(error) => {
                    let why = error.explain(&self.interface.name, &plan, mode, self.arena.bytes());
                    drop(first);
                    return Err(release_all(bound, pool, why));
                }
            }
        }
        Ok(Queues { bound, refused })
    }

    fn plan(&self, halves: Halves) -> Plan {
        Plan {
            interface: self.interface.index,
            queue: halves.queue,
            ring_size: self.options.ring_size,
            rx: halves.rx,
            tx: halves.tx,
            multi_buffer: self.multi_buffer,
            shares: self.options.shares(),
            busy_poll: self.options.busy_poll.map(|poll| (poll.micros, poll.budget)),
        }
    }

    fn warn(&self, bound: &[(Halves, Bound)], refused: Option<&str>, warnings: &mut Vec<String>) {
        let interface = &self.interface.name;
        if let Some(why) = refused {
            warnings.push(format!(
                "copy mode on {interface}, about 1 to 3 million packets/s for each core: {why}"
            ));
        }
        if bound.iter().any(|(_, bound)| !bound.large_budget && !bound.zero_copy) {
            warnings.push("32 packets for each system call when sending: more takes Linux 6.17".into());
        }
        if self.options.busy_poll.is_some() && !bound.iter().all(|(_, bound)| bound.polls) {
            warnings.push(format!(
                "busy polling has no effect on {interface} and is left off: the kernel names no NAPI instance for its \
                 queues as they are opened; many do so in zero-copy mode only, or not before the first packet; leave it \
                 out, and keep the worker off the core that takes the interrupts"
            ));
        }
    }

    /// Early packets are lost while a link restarts, and nobody would know why.
    fn wait_for_carrier(&self, warnings: &mut Vec<String>) {
        if !self.interface.carrier {
            return;
        }
        let Ok(mut route) = Route::open() else { return };
        let deadline = Instant::now() + CARRIER;
        loop {
            match route.link(&self.interface.name) {
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
        // Without copies a NIC has a limit of its own.
        let features = self.interface.xdp_features.filter(|_| zero_copy);
        let frames = features.map_or(tx::MAX_FRAMES, |features| features.zero_copy_segments.max(1) as usize);
        // What a veth hands on is looked at by the kernel (is_skb_forwardable), which drops what is longer.
        let longest = self.interface.mtu as usize + virtio::ETHERNET + usize::from(virtio::VLAN_TAG);
        let is_veth = self.interface.kind.as_deref() == Some("veth");
        Capabilities {
            sent: is_veth.then_some(SentLen { tagged: longest, untagged: longest }),
            max_len: (self.interface.mtu as usize + HEADERS).min(LONGEST).min(frames * FRAME_DATA),
            chains: self.multi_buffer,
            zero_copy,
            mode,
            link_mbps: self.interface.speed_mbps,
            ..Capabilities::default()
        }
    }

    fn hand_out(
        &self,
        bound: Vec<(Halves, Bound)>,
        beats: Vec<Option<Beat>>,
        maps: Option<&Arc<Maps>>,
        capabilities: &Capabilities,
        (back, wholes): (Option<&Back>, Vec<PacketTx>),
        unsummed: bool,
    ) -> (Vec<QueuePair>, Vec<Arc<Life>>) {
        let (mut pairs, mut lives, mut wholes) = (Vec::new(), Vec::new(), wholes.into_iter());
        for (index, ((Halves { queue, .. }, bound), beat)) in bound.into_iter().zip(beats).enumerate() {
            let per_call = bound.per_call();
            let Bound { rings, socket, probe, filled, polls, .. } = bound;
            let halves = u8::from(rings.rx.is_some()) + u8::from(rings.tx.is_some());
            let maps = maps.filter(|_| rings.rx.is_some());
            let life = Arc::new(Life::new(queue, halves, socket.clone(), probe, maps.cloned()));
            let mut filled = Some(filled);
            let rx = match (rings.rx, beat) {
                (Some(ring), Some(beat)) => {
                    let ledger = filled.take().unwrap_or_else(|| Ledger::new(self.arena));
                    let (socket, life) = (socket.clone(), life.clone());
                    let parts = rx::Parts {
                        ring,
                        fill: rings.fill,
                        ledger,
                        socket,
                        life,
                        beat,
                        busy_poll: polls,
                        unsummed,
                    };
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
                    per_call,
                    max_len: capabilities.max_len,
                    max_frames: capabilities.max_len.div_ceil(FRAME_DATA),
                    chains: capabilities.chains,
                    whole: wholes.next(),
                })) as Box<dyn TxQueue>
            });
            let tx = tx.or_else(|| back.and_then(|back| back.sender(index)));
            pairs.push(QueuePair { rx, tx });
            lives.push(life);
        }
        (pairs, lives)
    }
}

/// The packets of queues that receive go to their sockets, from now on, or once they have workers: what nobody has said the rest of is the
/// kernel's as long as nobody looks after it. The heartbeat of each, where there is one.
fn give(bound: &[(Halves, Bound)], maps: Option<&Maps>, now: bool) -> Result<Vec<Option<Beat>>, String> {
    let of = |(halves, bound): &(Halves, Bound)| {
        let Some(maps) = maps.filter(|_| bound.rings.rx.is_some()) else { return Ok(None) };
        let beat = if now { maps.beat(halves.queue) } else { maps.silent(halves.queue) };
        let beat = beat.map_err(|error| error.to_string())?;
        maps.add_socket(halves.queue, &bound.socket).map_err(|error| error.to_string())?;
        Ok(Some(beat))
    };
    bound.iter().map(of).collect()
}

/// Takes apart the queues that were bound in vain, so that their frames come back. Returns why.
fn release_all(bound: Vec<(Halves, Bound)>, pool: &mut Pool, why: String) -> String {
    for (_, Bound { rings, socket, probe, filled, .. }) in bound {
        drop(rings);
        Life::new(0, 1, socket, probe, None).close_half(filled, pool);
    }
    why
}
