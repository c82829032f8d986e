//! What waits in the queues of CPUs from which the kernel receives packets that no driver polls for (`netif_rx`).

use std::io;

/// Packets that wait in a CPU's backlog. Those that were queued before and are not among them any more have been received, as far as
/// this CPU does that: none is being worked on while a thread runs on it.
///
/// # Errors
/// When `/proc` is not there, or tells nothing of this CPU.
pub fn backlog(cpu: usize) -> io::Result<u32> {
    let text = std::fs::read_to_string("/proc/net/softnet_stat")?;
    find(&text, cpu).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no backlog of this CPU"))
}

/// A line for each CPU that is online, of hexadecimal numbers: the twelfth is the backlog (`softnet_backlog_len`), the thirteenth
/// the CPU. Older kernels have neither.
fn find(text: &str, cpu: usize) -> Option<u32> {
    let mut found = text.lines().filter_map(|line| {
        let mut numbers = line.split_ascii_whitespace().skip(11);
        let waits = u32::from_str_radix(numbers.next()?, 16).ok()?;
        (usize::from_str_radix(numbers.next()?, 16).ok()? == cpu).then_some(waits)
    });
    found.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_found_by_its_number_and_not_by_its_line() {
        let line = |cpu: u32, waits: u32| {
            format!("0004b7e1 00000000 {}{waits:08x} {cpu:08x}\n", "00000000 ".repeat(9))
        };
        let text = line(0, 3) + &line(2, 0x1f);
        assert_eq!((find(&text, 0), find(&text, 1), find(&text, 2)), (Some(3), None, Some(0x1f)));
        assert_eq!(find("0004b7e1 00000000\n", 0), None, "a kernel that does not tell");
    }

    #[test]
    fn this_kernel_tells_of_the_first_cpu() {
        assert!(backlog(0).is_ok());
        assert!(backlog(usize::from(u16::MAX)).is_err());
    }
}
