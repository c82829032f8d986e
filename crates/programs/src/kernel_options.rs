//! What the kernel's sockets are set to, by socket options (socket(7), tcp(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bywash_sys::tcp_option::{TcpOption, set};
use rustix::net::sockopt;

/// How the kernel's connections are to behave; what is `None` or `false` stays as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelOptions {
    /// `TCP_CONGESTION`
    pub congestion: Option<&'static str>,
    /// `SO_KEEPALIVE`
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`; whole seconds
    pub keepalive_idle: Option<Duration>,
    /// `TCP_KEEPINTVL`; whole seconds
    pub keepalive_interval: Option<Duration>,
    /// `TCP_KEEPCNT`
    pub keepalive_count: Option<u8>,
    /// `TCP_USER_TIMEOUT`; whole milliseconds
    pub user_timeout: Option<Duration>,
    /// `TCP_LINGER2`; whole seconds
    pub fin_timeout: Option<Duration>,
    /// `TCP_MAXSEG`, bytes
    pub max_segment: Option<u16>,
    /// `SO_RCVBUF`, bytes
    pub receive_buffer: Option<u32>,
    /// `SO_SNDBUF`, bytes
    pub send_buffer: Option<u32>,
    /// `TCP_NOTSENT_LOWAT`, bytes
    pub unsent: Option<u32>,
    /// `TCP_SYNCNT`
    pub syn_retries: Option<u8>,
}

impl KernelOptions {
    /// Sets a socket to them, before it listens or connects: a listener's connections have them from it.
    ///
    /// # Errors
    /// Which option the kernel refuses.
    pub(crate) fn apply(&self, fd: &OwnedFd) -> io::Result<()> {
        let named = |name: &'static str| {
            move |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"))
        };
        let number = |option, value: Option<u32>, name| match value {
            Some(value) => set(fd, option, value).map_err(named(name)),
            None => Ok(()),
        };
        if let Some(name) = self.congestion {
            sockopt::set_tcp_congestion(fd, name).map_err(|errno| named("TCP_CONGESTION")(errno.into()))?;
        }
        if self.keepalive {
            sockopt::set_socket_keepalive(fd, true)?;
        }
        if let Some(idle) = self.keepalive_idle {
            sockopt::set_tcp_keepidle(fd, seconds(idle))
                .map_err(|errno| named("TCP_KEEPIDLE")(errno.into()))?;
        }
        if let Some(interval) = self.keepalive_interval {
            let done = sockopt::set_tcp_keepintvl(fd, seconds(interval));
            done.map_err(|errno| named("TCP_KEEPINTVL")(errno.into()))?;
        }
        if let Some(count) = self.keepalive_count {
            sockopt::set_tcp_keepcnt(fd, count.into()).map_err(|errno| named("TCP_KEEPCNT")(errno.into()))?;
        }
        if let Some(timeout) = self.user_timeout {
            let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(fd, millis)
                .map_err(|errno| named("TCP_USER_TIMEOUT")(errno.into()))?;
        }
        number(TcpOption::MaxSegment, self.max_segment.map(u32::from), "TCP_MAXSEG")?;
        number(TcpOption::Unsent, self.unsent, "TCP_NOTSENT_LOWAT")?;
        number(TcpOption::SynRetries, self.syn_retries.map(u32::from), "TCP_SYNCNT")?;
        let timeout = self.fin_timeout.map(|time| u32::try_from(seconds(time).as_secs()).unwrap_or(u32::MAX));
        number(TcpOption::FinTimeout, timeout, "TCP_LINGER2")?;
        if let Some(size) = self.receive_buffer {
            sockopt::set_socket_recv_buffer_size(fd, size as usize)?;
            enough(sockopt::socket_recv_buffer_size(fd)?, size, "SO_RCVBUF", "rmem_max")?;
        }
        if let Some(size) = self.send_buffer {
            sockopt::set_socket_send_buffer_size(fd, size as usize)?;
            enough(sockopt::socket_send_buffer_size(fd)?, size, "SO_SNDBUF", "wmem_max")?;
        }
        Ok(())
    }
}

/// At least one: the kernel knows no parts of a second here.
fn seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

/// The kernel gives less without a word, and shows the double of what it gives (socket(7)).
fn enough(shown: usize, wanted: u32, name: &str, sysctl: &str) -> io::Result<()> {
    if shown / 2 >= wanted as usize {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{name}: the kernel gives {} bytes instead of {wanted}; raise sysctl net.core.{sysctl}",
        shown / 2
    )))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    #[test]
    fn a_socket_has_what_it_was_set_to() {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let options = KernelOptions {
            congestion: Some("reno"),
            keepalive: true,
            keepalive_idle: Some(Duration::from_millis(59_001)),
            keepalive_interval: Some(Duration::from_secs(7)),
            keepalive_count: Some(3),
            user_timeout: Some(Duration::from_millis(1500)),
            fin_timeout: Some(Duration::from_secs(5)),
            max_segment: Some(500),
            receive_buffer: Some(65_536),
            send_buffer: Some(32_768),
            unsent: Some(16_384),
            syn_retries: Some(2),
        };
        options.apply(&fd).unwrap();
        assert_eq!(sockopt::tcp_congestion(&fd).unwrap(), "reno");
        assert!(sockopt::socket_keepalive(&fd).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&fd).unwrap(), Duration::from_secs(60));
        assert_eq!(sockopt::tcp_keepintvl(&fd).unwrap(), Duration::from_secs(7));
        assert_eq!(sockopt::tcp_keepcnt(&fd).unwrap(), 3);
        assert_eq!(sockopt::tcp_user_timeout(&fd).unwrap(), 1500);
        assert_eq!(sockopt::socket_recv_buffer_size(&fd).unwrap(), 2 * 65_536);
        assert_eq!(sockopt::socket_send_buffer_size(&fd).unwrap(), 2 * 32_768);
        for (options, says) in [
            (KernelOptions { max_segment: Some(5), ..KernelOptions::default() }, "TCP_MAXSEG"),
            (KernelOptions { congestion: Some("none such"), ..KernelOptions::default() }, "TCP_CONGESTION"),
            (
                KernelOptions { receive_buffer: Some(1 << 30), ..KernelOptions::default() },
                "net.core.rmem_max",
            ),
        ] {
            let why = options.apply(&fd).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
    }
}
