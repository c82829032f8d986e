//! Which cores are a bad place for workers: one that takes the NIC's interrupts, two that are threads of one core, one far
//! from the NIC. And which are a good one, for workers that nobody has placed.
//!
//! The kernel says it in `/sys/class/net/NAME/device` (`msi_irqs`, `numa_node`), `/proc/irq`, and
//! `/sys/devices/system` (`cpu`, `node`). Where it says nothing, as of virtual interfaces, there is nothing to tell.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::worker::allowed_cores;

/// What is to be told of `workers`, the cores of those who serve an interface: a line each, with the cure.
pub fn core_conflicts(interface: &str, workers: &[usize]) -> Vec<String> {
    conflicts(Path::new("/"), interface, workers)
}

fn conflicts(root: &Path, interface: &str, workers: &[usize]) -> Vec<String> {
    let device = root.join("sys/class/net").join(interface).join("device");
    let interrupts = interrupts(root, &device);
    let takes = |core: usize| {
        let (number, _) = interrupts.iter().find(|(_, cores)| cores.contains(&core))?;
        Some(format!(
            "core {core}, a worker's, takes interrupts of {interface}: name another (--cores), or write another to \
             /proc/irq/{number}/smp_affinity_list"
        ))
    };
    let mut found: Vec<String> = workers.iter().filter_map(|&core| takes(core)).collect();
    for (index, &core) in workers.iter().enumerate() {
        let path = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let threads = cores(&root.join(path));
        if let Some(other) =
            workers[index + 1..].iter().find(|other| **other != core && threads.contains(other))
        {
            found.push(format!(
                "cores {core} and {other} are two threads of one core, so each worker is slower: name others (--cores)"
            ));
        }
    }
    found.extend(far(root, &device, interface, workers));
    found
}

/// A core for each of so many workers that serve the interface with this index from its queue `queue` on, of those that the
/// calling thread may use; empty where the kernel does not tell which these are.
///
/// No two have the same one as long as there are enough; then they share them, in turn. Cores that take none of the interface's
/// interrupts come first, among those the ones on its NUMA node, else in the order of their numbers, round from a place that the
/// interface's index and the queue say: processes that serve several interfaces, or queues, do not all begin with the same core.
pub fn worker_cores(interface: u32, queue: u16, workers: usize) -> Vec<usize> {
    // By the name that it has now; of what is none nothing is known.
    let name = asked().and_then(|socket| netdevice::index_to_name(socket, interface)).unwrap_or_default();
    let begin = (interface as usize).wrapping_mul(workers).wrapping_add(queue.into());
    placed(Path::new("/"), &name, &allowed_cores(), begin).take(workers).collect()
}

/// The index of an interface, by the name that it has now; 0 when there is none.
pub fn index_of(interface: &str) -> u32 {
    asked().and_then(|socket| netdevice::name_to_index(socket, interface)).unwrap_or_default()
}

/// Who tells of interfaces: sysfs shows those of the namespace that it was mounted in.
fn asked() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// Over and over those of `allowed`, the better ones first, among equals round from the one at place `begin`.
fn placed(root: &Path, interface: &str, allowed: &[usize], begin: usize) -> impl Iterator<Item = usize> {
    let device = root.join("sys/class/net").join(interface).join("device");
    let interrupts = interrupts(root, &device);
    let near = near(root, &device).map(|(_, near)| near);
    let mut order = allowed.to_vec();
    order.rotate_left(begin % allowed.len().max(1));
    order.sort_by_key(|core| {
        let is_interrupted = interrupts.iter().any(|(_, cores)| cores.contains(core));
        (is_interrupted, near.as_ref().is_some_and(|near| !near.contains(core)))
    });
    order.into_iter().cycle()
}

/// The NIC's NUMA node, and the cores on it.
fn near(root: &Path, device: &Path) -> Option<(u32, BTreeSet<usize>)> {
    // -1 where there is but one.
    let node: u32 = fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()?;
    let near = cores(&root.join(format!("sys/devices/system/node/node{node}/cpulist")));
    (!near.is_empty()).then_some((node, near))
}

/// Those that are not on the NIC's NUMA node.
fn far(root: &Path, device: &Path, interface: &str, workers: &[usize]) -> Option<String> {
    let (node, near) = near(root, device)?;
    let core = workers.iter().find(|core| !near.contains(core))?;
    Some(format!(
        "core {core}, a worker's, is not on NUMA node {node}, where {interface} is, so memory is slower: name one of {} \
         (--cores)",
        near.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    ))
}

/// A device's interrupts, and the cores that take each.
fn interrupts(root: &Path, device: &Path) -> Vec<(u32, BTreeSet<usize>)> {
    let entries = fs::read_dir(device.join("msi_irqs")).into_iter().flatten().flatten();
    let mut found: Vec<(u32, BTreeSet<usize>)> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(|number: u32| {
            let directory = root.join(format!("proc/irq/{number}"));
            // Where it goes now; else where it may go.
            let now = cores(&directory.join("effective_affinity_list"));
            (number, if now.is_empty() { cores(&directory.join("smp_affinity_list")) } else { now })
        })
        .collect();
    found.sort_unstable();
    found
}

/// A file's list of cores, `0-3,8`; empty when it is none.
fn cores(path: &Path) -> BTreeSet<usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of two nodes with two cores of two threads each, whose NIC is on the first.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/class/net/eth1/device/numa_node", "0\n");
        write("sys/class/net/eth1/device/msi_irqs/45", "msix\n");
        write("sys/class/net/eth1/device/msi_irqs/46", "msix\n");
        write("proc/irq/45/effective_affinity_list", "0\n");
        write("proc/irq/45/smp_affinity_list", "0-7\n");
        write("proc/irq/46/smp_affinity_list", "5\n");
        write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
        for core in 0..8 {
            let list = format!("{},{}\n", core % 4, core % 4 + 4);
            write(&format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"), &list);
        }
        root
    }

    #[test]
    fn each_conflict_names_its_cores_and_the_cure() {
        let root = machine();
        let told = |workers: &[usize]| conflicts(root.path(), "eth1", workers);
        assert_eq!(told(&[1]), [""; 0]);
        assert_eq!(told(&[1, 4]), [""; 0]);
        assert_eq!(told(&[4]), [""; 0]);
        for (workers, words) in [
            (&[0_usize, 1][..], ["core 0, a worker's, takes interrupts of eth1", "/proc/irq/45/"]),
            (&[5], ["core 5, a worker's, takes interrupts of eth1", "/proc/irq/46/"]),
            (&[2], ["core 2, a worker's, is not on NUMA node 0", "one of 0,1,4,5"]),
        ] {
            let told = told(workers).join("\n");
            assert!(words.iter().all(|word| told.contains(word)), "{workers:?}: {told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
        assert!(told(&[1, 5]).iter().any(|line| line.starts_with("cores 1 and 5 are two threads of one")));
    }

    #[test]
    fn workers_have_cores_without_interrupts_first_then_near_ones_and_share_only_when_there_are_no_more() {
        let root = machine();
        let placed = |interface: &str, allowed: &[usize], begin: usize, workers: usize| {
            placed(root.path(), interface, allowed, begin).take(workers).collect::<Vec<_>>()
        };
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(placed("eth1", &all, 0, 8), [1, 4, 2, 3, 6, 7, 0, 5]);
        assert_eq!(placed("eth1", &all, 2, 3), [4, 1, 2], "from another place");
        assert_eq!(placed("eth1", &[0, 5, 6], 0, 5), [6, 0, 5, 6, 0], "no others than are allowed");
        // Of two interfaces that nothing is known of, with two queues each.
        assert_eq!([4, 6].map(|begin| placed("veth0", &all, begin, 2)), [[4, 5], [6, 7]]);
        assert_eq!(placed("veth0", &[3], 7, 2), [3, 3]);
        assert_eq!(placed("veth0", &[], 7, 2), [0; 0]);
    }

    #[test]
    fn of_an_interface_without_a_device_nothing_is_told() {
        assert_eq!(conflicts(machine().path(), "veth0", &[0, 1]), [""; 0]);
        assert_eq!(core_conflicts("lo", &[0]), [""; 0]);
    }
}
