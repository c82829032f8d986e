//! The states of a connection and what leads from one to the next (RFC 9293, 3.3.2, figure 5).

/// A connection's state. LISTEN and TIME-WAIT are entries of their own in other tables, and so is SYN-RECEIVED of a
/// passive open without Fast Open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// There is no connection.
    #[default]
    Closed,
    /// We have asked for a connection.
    SynSent,
    /// Both have asked at the same time; or the peer has, by Fast Open (RFC 7413), and has not heard of us yet.
    SynReceived,
    /// Data can go both ways.
    Established,
    /// We have said that we will send no more.
    FinWait1,
    /// The peer knows that we will send no more.
    FinWait2,
    /// The peer will send no more.
    CloseWait,
    /// Both have said so at the same time.
    Closing,
    /// Both have said so, the peer first.
    LastAck,
    /// All is over, but old segments may still come.
    TimeWait,
}

/// What moves a connection on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Our user asks for a connection.
    Opened,
    /// The peer has, and its handshake is nearly over: until then it is an entry of another table.
    Asked,
    /// A SYN that acknowledges ours, or the acknowledgment that was still missing.
    Connected,
    /// A SYN that does not acknowledge ours.
    Crossed,
    /// Our user is done sending, and nothing has to wait for the end of the handshake (3.10.4).
    Shutdown,
    /// Our FIN has been acknowledged.
    FinAcknowledged,
    /// The peer's FIN has come.
    FinReceived,
    /// A reset of either end, a timer that has run out, or the end of the wait.
    Ended,
}

impl State {
    /// The state after `cause`; the same when it means nothing here.
    pub(crate) fn after(self, cause: Cause) -> Self {
        use Cause::{Asked, Connected, Crossed, Ended, FinAcknowledged, FinReceived, Opened, Shutdown};
        match (self, cause) {
            (Self::Closed, Opened) => Self::SynSent,
            (Self::Closed, Asked) => Self::SynReceived,
            (Self::SynSent | Self::SynReceived, Connected) => Self::Established,
            (Self::SynSent, Crossed) => Self::SynReceived,
            (Self::SynReceived | Self::Established, Shutdown) => Self::FinWait1,
            (Self::CloseWait, Shutdown) => Self::LastAck,
            (Self::FinWait1, FinAcknowledged) => Self::FinWait2,
            (Self::Closing, FinAcknowledged) => Self::TimeWait,
            (Self::LastAck, FinAcknowledged) => Self::Closed,
            (Self::Established, FinReceived) => Self::CloseWait,
            (Self::FinWait1, FinReceived) => Self::Closing,
            (Self::FinWait2, FinReceived) => Self::TimeWait,
            (_, Ended) => Self::Closed,
            (state, _) => state,
        }
    }

    /// Whether the peer may still send data.
    #[inline]
    pub(crate) fn takes_data(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether our user may still send data.
    #[inline]
    pub(crate) fn gives_data(self) -> bool {
        matches!(self, Self::SynSent | Self::SynReceived | Self::Established | Self::CloseWait)
    }

    /// Whether the handshake is over, and something may still be said.
    #[inline]
    pub(crate) fn has_opened(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived | Self::TimeWait)
    }

    /// Whether it counts as established: so RFC 4022 has it (tcpCurrEstab).
    #[inline]
    pub(crate) fn is_established(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Whether both ends know each other's sequence numbers.
    #[inline]
    pub(crate) fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_transitions() {
        use Cause::{Asked, Connected, Crossed, Ended, FinAcknowledged, FinReceived, Opened, Shutdown};
        use State::{
            CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent,
            TimeWait,
        };
        let mut table = String::new();
        for state in [
            Closed,
            SynSent,
            SynReceived,
            Established,
            FinWait1,
            FinWait2,
            CloseWait,
            Closing,
            LastAck,
            TimeWait,
        ] {
            for cause in [Opened, Asked, Connected, Crossed, Shutdown, FinAcknowledged, FinReceived, Ended] {
                if state.after(cause) != state {
                    table += &format!("{state:?} --{cause:?}-> {:?}\n", state.after(cause));
                }
            }
        }
        let expected = "\
Closed --Opened-> SynSent
Closed --Asked-> SynReceived
SynSent --Connected-> Established
SynSent --Crossed-> SynReceived
SynSent --Ended-> Closed
SynReceived --Connected-> Established
SynReceived --Shutdown-> FinWait1
SynReceived --Ended-> Closed
Established --Shutdown-> FinWait1
Established --FinReceived-> CloseWait
Established --Ended-> Closed
FinWait1 --FinAcknowledged-> FinWait2
FinWait1 --FinReceived-> Closing
FinWait1 --Ended-> Closed
FinWait2 --FinReceived-> TimeWait
FinWait2 --Ended-> Closed
CloseWait --Shutdown-> LastAck
CloseWait --Ended-> Closed
Closing --FinAcknowledged-> TimeWait
Closing --Ended-> Closed
LastAck --FinAcknowledged-> Closed
LastAck --Ended-> Closed
TimeWait --Ended-> Closed
";
        assert_eq!(table, expected);
    }
}
