# One measurement of the benchmark `way-back`, in namespaces of its own that end with it. Called with: packets/s that come,
# seconds, who receives (kernel, or order: a receiver that judges the order of packets), bywash.
set -eu
rate=$1 seconds=$2 who=$3 bywash=$4
here=10.9.0.1 there=10.9.0.2

mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add server
server() { ip netns exec server "$@"; }
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
memory='--huge-pages off --memory 32M --json --duration 60s'
server "$bywash" filter xdp:far --cores 1 $memory >/run/filter &
filter=$!
if [ "$who" = order ]; then
    server taskset -c 1 "$bywash" receive packet:far --ring 32768 $memory >/run/received &
    receiver=$!
fi
sleep 2
"$bywash" generate --inject near --cores 0 --dst $there --dst-mac "$(server cat /sys/class/net/far/address)" --src $here \
    --sport 10000-10999 --dport 7 --flows 1000 --rate "$rate" --duration "$seconds" --force --json >/run/sent || true
sleep 1
kill -INT $filter
wait $filter || true
if [ "$who" = order ]; then
    kill -INT $receiver
    wait $receiver || true
    tail -n 1 /run/received
fi
tail -n 1 /run/sent
tail -n 1 /run/filter
server nft -j list counters
echo "conntrack: $(server cat /proc/sys/net/netfilter/nf_conntrack_count)"
