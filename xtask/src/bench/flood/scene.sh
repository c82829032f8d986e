# One measurement of the benchmark `flood`, in namespaces of its own that end with it: a server behind a cable, a flood and
# clients at the cable's other end. Called with: who drops, the rules' folder, packets/s of the flood (or max), the
# flood's ports, its sources, seconds, bywash, xdp_drop.
set -eu
filter=$1 rules=$2 rate=$3 ports=$4 sources=$5 seconds=$6 bywash=$7 xdp_drop=$8
here=10.9.0.1 there=10.9.0.2

mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir /run/netns /run/nginx /run/nsd
ip netns add server
server() { ip netns exec server "$@"; }
# Over `far` come the clients and the flood; over `aside` comes a flood that is nobody's. A queue for each core, as a NIC with
# RSS has: a veth's holds 256 packets, which a flood on the clients' own queue fills whoever drops it in XDP.
two='numtxqueues 2 numrxqueues 2'
for pair in near:far aside:aside-far; do
    ip link add "${pair%:*}" $two type veth peer name "${pair#*:}" $two netns server
    for core in 0 1; do
        echo $((1 << core)) >"/sys/class/net/${pair%:*}/queues/tx-$core/xps_cpus"
    done
    ip link set "${pair%:*}" up
    server ip link set "${pair#*:}" up
    # Without it a veth has no ring for frames of XDP.
    server ethtool -K "${pair#*:}" gro on
done
ip address add $here/24 dev near
server ip address add $there/24 dev far

cat >/run/nginx.conf <<END
daemon off; worker_processes 1; pid /run/nginx/pid; error_log /run/nginx/error;
events { worker_connections 1024; }
http {
    access_log off; keepalive_requests 100000000;
    client_body_temp_path /run/nginx/body; proxy_temp_path /run/nginx/proxy; fastcgi_temp_path /run/nginx/fastcgi;
    uwsgi_temp_path /run/nginx/uwsgi; scgi_temp_path /run/nginx/scgi;
    server { listen $there:80; location / { return 200 "a short answer\n"; } }
}
END
cat >/run/nsd.conf <<END
server:
    ip-address: $there
    username: ""
    zonesdir: "/run/nsd"
    database: ""
    pidfile: ""
    rrl-ratelimit: 0
    zonelistfile: "/run/nsd/zone.list"
    xfrdfile: "/run/nsd/xfrd.state"
    xfrdir: "/run/nsd"
remote-control:
    control-enable: no
zone:
    name: example.test
    zonefile: example.test
END
printf '%s\n' '$ORIGIN example.test.' '@ 3600 SOA ns hostmaster 1 3600 600 86400 3600' '@ 3600 NS ns' \
    "ns 3600 A $there" 'www 3600 A 192.0.2.1' >/run/nsd/example.test
echo 'www.example.test A' >/run/queries
server taskset -c 1 nginx -p /run/nginx -c /run/nginx.conf &
nginx=$!
server taskset -c 1 nsd -d -c /run/nsd.conf 2>/run/nsd/error &
nsd=$!

# Waits until a condition is true, as long as a process is there: two minutes at most, since ten thousand rules take half a
# minute to be told. If it does not become true the scene fails, and shows what the filter has said.
await() {
    process=$1 tries=1200
    shift
    until "$@"; do
        if ! kill -0 "$process" || [ $((tries -= 1)) -eq 0 ]; then
            cat /run/filter || true
            echo "not ready: $*"
            exit 1
        fi
        sleep 0.1
    done
}
# Starts what filters as long as a command runs that it is given, and waits until it has started that: it filters then.
# Whatever runs ends with the scene, which is the first process of its namespace.
ready='touch /run/ready && exec sleep infinity'
hold() {
    rm -f /run/ready
    server "$@" >/run/filter 2>&1 &
    await $! test -e /run/ready
}

interface=near mac=$(server cat /sys/class/net/far/address)
case $filter in
'nothing') ;;
'other link' | 'other link, XDP')
    [ "$filter" = 'other link' ] || hold "$xdp_drop" --udp-port 7000 far sh -c "$ready"
    interface=aside mac=$(server cat /sys/class/net/aside-far/address)
    hold "$xdp_drop" aside-far sh -c "$ready"
    ;;
'one compare, XDP') hold "$xdp_drop" --udp-port 7000 far sh -c "$ready" ;;
'one compare, TCX') hold "$xdp_drop" --udp-port 7000 --tcx far sh -c "$ready" ;;
'bywash filter' | 'bywash filter, XDP')
    attach=auto
    [ "$filter" = 'bywash filter' ] || attach=xdp
    server "$bywash" filter xdp:far --rules "$rules/bywash.toml" --attach $attach --cores 1 --force --huge-pages off \
        --memory 32M >/run/filter 2>&1 &
    await $! grep -qs '^filtering ' /run/filter
    ;;
# All in one shell: `ip netns exec` has a /sys of its own for each command, and the pinned maps are below that.
'xdp-filter') hold sh -ec "mount -t bpf bpf /sys/fs/bpf; . $rules/xdp-filter.sh; $ready" ;;
'nftables') server nft -f "$rules/nft" ;;
'iptables') server iptables-nft-restore "$rules/iptables" ;;
'tc cls_bpf')
    program="bytecode-file $rules/classic-bpf"
    if [ -e "$rules/prefixes.txt" ]; then
        mkdir /run/bpf
        mount -t bpf bpf /run/bpf
        "$xdp_drop" --sources "$rules/prefixes.txt" --pin /run/bpf/drop
        program='object-pinned /run/bpf/drop'
    fi
    server tc qdisc add dev far clsact
    server tc filter add dev far ingress bpf $program direct-action
    ;;
esac
# Until the servers have ports 80 and 53: a TCP socket that listens, a UDP socket without a peer.
await $nginx server grep -q ':0050 00000000:0000 0A' /proc/net/tcp
await $nsd server grep -q ':0035 00000000:0000 07' /proc/net/udp

pace= length=$((seconds + 2))
[ "$rate" = max ] || pace="--rate $rate"
"$bywash" generate --inject $interface --cores 0 --payload zeros --dst $there --dst-mac "$mac" --src "$sources" \
    --sport '1024-65535 random' --dport "$ports" --size 64 $pace --duration $length --force --json \
    >/run/flood 2>/run/flood.said || true &
flood=$!
sleep 1
if [ "$rate" != max ]; then
    taskset -c 1 dnsperf -s $there -d /run/queries -l "$seconds" -Q 2000 -v -O suppress=timeout >/run/dns 2>&1 &
    dns=$!
    taskset -c 1 wrk -t1 -c16 "-d$seconds" --latency http://$there/ >/run/web
    wait $dns
fi
wait $flood
cat /run/flood.said
tail -n 1 /run/flood
if [ "$rate" != max ]; then
    cat /run/web
    # `-v` has a line for each answer, with its seconds at the end; those are for the figures alone.
    grep -v '^> ' /run/dns
    awk '/^> / && $NF ~ /^[0-9]+[.][0-9]+$/ { print $NF }' /run/dns | sort -n | awk -v "seconds=$seconds" '
        { late[NR] = $1 }
        END { if (NR) printf "DNS answers/s: %.1f\nDNS p99, ms: %.3f\n", NR / seconds, 1000 * late[int((99 * NR + 99) / 100)] }'
fi
cat /run/filter 2>/dev/null || true
# What came through: nobody listens to the flood's ports.
server awk '/^Udp: [0-9]/ { print "came through:", $3 }' /proc/net/snmp
