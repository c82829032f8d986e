//! What of the machine a test or the demo could leave changed, and whether it did.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bywash_sys::bpf::{OUR_PROGRAM, Program, loaded_maps, program_ids};
use bywash_sys::route::Route;
use bywash_sys::sysctl;

use crate::ours::{entries, held_by_others, processes};

/// The machine as it was at one time, seen from the caller's network namespace.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// One line for each interface and each address.
    links: BTreeSet<String>,
    /// The number of each network namespace that processes of ours use, and who uses it.
    namespaces: BTreeMap<String, String>,
    /// XDP and traffic control programs by number, with their names. An attached program is a loaded one, so these
    /// are the links, too.
    programs: BTreeMap<u32, String>,
    /// Our maps by number, with their names.
    maps: BTreeMap<u32, String>,
    /// Settings by name.
    settings: BTreeMap<String, String>,
}

impl Snapshot {
    /// Looks at the machine now. What this process may not see is not compared.
    #[must_use]
    pub fn take() -> Self {
        Self {
            links: links(),
            namespaces: namespaces(),
            programs: programs(),
            maps: maps(),
            settings: settings(),
        }
    }

    /// What is not as it was: a line for each thing; none when all is well. Waits for up to two seconds, since the
    /// kernel removes namespaces and programs some time after nobody uses them. What others have removed in the
    /// meantime does not count.
    #[must_use]
    pub fn difference(&self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let difference = self.compare(&Self::take());
            if difference.is_empty() || start.elapsed() > PATIENCE {
                return difference;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn compare(&self, now: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.links.difference(&now.links).map(|link| format!("there was: {link}")));
        lines.extend(now.links.difference(&self.links).map(|link| format!("there is: {link}")));
        for (number, user) in &now.namespaces {
            if !self.namespaces.contains_key(number) {
                lines.push(format!("new network namespace {number}, used by {user}"));
            }
        }
        for (id, name) in &now.programs {
            if !self.programs.contains_key(id) && !held_by_others("prog_id", *id) {
                lines.push(format!("new BPF program {id} '{name}'"));
            }
        }
        for (id, name) in &now.maps {
            if !self.maps.contains_key(id) && !held_by_others("map_id", *id) {
                lines.push(format!("new BPF map {id} '{name}'"));
            }
        }
        for (name, before) in &self.settings {
            let after = now.settings.get(name).map_or("nothing", String::as_str);
            if before != after {
                lines.push(format!("{name} was {before} and is {after}"));
            }
        }
        lines
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

/// Settings that tests and tools of this field like to change.
const SETTINGS: &[&str] = &[
    "kernel.unprivileged_bpf_disabled",
    "net.core.bpf_jit_enable",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv6.conf.all.disable_ipv6",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.default.disable_ipv6",
    "vm.max_map_count",
    "vm.nr_overcommit_hugepages",
];

fn links() -> BTreeSet<String> {
    /// IFF_UP, IFF_PROMISC, IFF_ALLMULTI: what an administrator or a program sets; not what comes and goes with a
    /// cable.
    const SET: u32 = 0x1 | 0x100 | 0x200;
    let Ok(mut route) = Route::open() else { return BTreeSet::new() };
    let links = route.links().unwrap_or_default();
    let addresses = route.addresses().unwrap_or_default();
    let link = links.iter().map(|link| {
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        let (index, name, mtu, flags) = (link.index, &link.name, link.mtu, link.flags & SET);
        format!(
            "interface {index} {name}, {mac}, MTU {mtu}, flags {flags:#x}, XDP program {:?}",
            link.xdp.first()
        )
    });
    let address =
        addresses.iter().map(|address| format!("{} on interface {}", address.prefix, address.index));
    link.chain(address).collect()
}

/// Of every process and thread of ours, under a name in `/run/netns`, and held open by this process.
fn namespaces() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut note = |link: io::Result<std::path::PathBuf>, user: &dyn Fn() -> String| {
        if let Some(number) = link.ok().as_deref().and_then(Path::to_str).filter(|to| to.starts_with("net:["))
        {
            found.entry(number.to_owned()).or_insert_with(user);
        }
    };
    for (process, _) in processes().filter(|(_, ours)| *ours) {
        let program = || fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        for thread in entries(&format!("/proc/{process}/task")) {
            let link = fs::read_link(format!("/proc/{process}/task/{thread}/ns/net"));
            note(link, &|| format!("process {process} {}", program().trim()));
        }
    }
    for fd in entries("/proc/self/fd") {
        note(fs::read_link(format!("/proc/self/fd/{fd}")), &|| format!("this process, descriptor {fd}"));
    }
    for name in entries("/run/netns") {
        found.entry(format!("/run/netns/{name}")).or_insert_with(|| "its name".into());
    }
    found
}

fn programs() -> BTreeMap<u32, String> {
    /// `BPF_PROG_TYPE_SCHED_CLS`, `_SCHED_ACT` and `_XDP`: others come and go by other programs' doing.
    const KINDS: [u32; 3] = [3, 4, 6];
    let mut found = BTreeMap::new();
    for id in program_ids().unwrap_or_default() {
        // One that has gone since it was listed is not there.
        if let Ok(info) = Program::by_id(id).and_then(|program| program.info())
            && KINDS.contains(&info.kind)
        {
            found.insert(id, info.name);
        }
    }
    found
}

fn maps() -> BTreeMap<u32, String> {
    let all = loaded_maps().unwrap_or_default();
    // Others' come and go by other programs' doing.
    all.into_iter().filter(|(_, name)| name.starts_with(OUR_PROGRAM)).collect()
}

/// The pool of huge pages is among them. How many of it are free is not: those of packet memory, which lives as long
/// as its process, come back with the process's end.
fn settings() -> BTreeMap<String, String> {
    let mut settings: BTreeMap<String, String> =
        SETTINGS.iter().filter_map(|name| Some(((*name).to_owned(), sysctl::read(name).ok()?))).collect();
    for size in entries("/sys/kernel/mm/hugepages") {
        let pool = fs::read_to_string(format!("/sys/kernel/mm/hugepages/{size}/nr_hugepages"));
        settings.extend(pool.map(|pages| (format!("{size}/nr_hugepages"), pages.trim().to_owned())));
    }
    settings
}
