# One measurement of the benchmark `way-back`, in namespaces of its own that end with it. Called with: packets/s that come,
# seconds, who receives (kernel; alone: the kernel without a filter; order: a receiver that judges the order of packets), bywash.
set -eu
rate=$1 seconds=$2 who=$3 bywash=$4
here=10.9.0.1 there=10.9.0.2

mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add server
server() { ip netns exec server "$@"; }
# Its own messages would be among the packets.
for kind in all default; do
    echo 1 >/proc/sys/net/ipv6/conf/$kind/disable_ipv6
    server sysctl -qw net.ipv6.conf.$kind.disable_ipv6=1
done
ip link add near type veth peer name far netns server
ip link set near up
server ip link set far up
ip address add $here/24 dev near
server ip address add $there/24 dev far
# conntrack is at work as long as a rule asks it.
server nft -f - <<END
table inet seen {
    counter ours { }
    counter others { }
    chain in {
        type filter hook prerouting priority filter; policy accept;
        iifname far udp dport 7 ct state new counter name ours accept
        udp dport 7 counter name others
    }
}
END
# Whom the packets are for. Nobody reads them: how long that would take is another question, but without him the kernel would
# look up a way back for an error about each.
ip netns exec server perl -MSocket -e 'socket S, PF_INET, SOCK_DGRAM, 0 and bind S, pack_sockaddr_in 7, INADDR_ANY or die; sleep 60' &
reader=$!
memory='--huge-pages off --memory 32M --json --duration 60s'
filter=
if [ "$who" = alone ]; then
    # Its own work on the same core as the filter's. A veth takes injected packets when its other end has GRO on.
    server ethtool -K far gro on
    server sh -c 'echo 2 >/sys/class/net/far/queues/rx-0/rps_cpus'
else
    # Without the function, which would be a shell between this one and the filter.
    ip netns exec server "$bywash" filter xdp:far --cores 1 $memory >/run/filter &
    filter=$!
fi
if [ "$who" = order ]; then
    ip netns exec server taskset -c 1 "$bywash" receive packet:far --ring 32768 $memory >/run/received &
    receiver=$!
fi
sleep 2
pace=
[ "$rate" = max ] || pace="--rate $rate"
"$bywash" generate --inject near --cores 0 --dst $there --dst-mac "$(server cat /sys/class/net/far/address)" --src $here \
    --sport 10000-10999 --dport 7 --flows 1000 $pace --duration "$seconds" --force --json >/run/sent || true
sleep 1
# What a shell starts in the background does not hear SIGINT.
if [ "$filter" ]; then
    kill -TERM $filter
    wait $filter || true
fi
kill $reader
if [ "$who" = order ]; then
    kill -TERM $receiver
    wait $receiver || true
    tail -n 1 /run/received
fi
tail -n 1 /run/sent
[ -z "$filter" ] || tail -n 1 /run/filter
server nft -j list counters
echo "conntrack: $(server cat /proc/sys/net/netfilter/nf_conntrack_count)"
