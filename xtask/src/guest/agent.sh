#!/usr/bin/dash
# Runs in a guest as its first program. A line from the port says how many bytes a script has, and a word. The script comes
# when "ready" was answered, so that reading the line takes nothing of it. Its output goes back, then a line of the word and
# the exit code.
export PATH=/usr/sbin:/usr/bin:/run/applets HOME=/run LD_LIBRARY_PATH=
/usr/bin/busybox mkdir /run/applets
/usr/bin/busybox --install -s /run/applets
mkdir -p /run/netns /var/tmp /dev/shm /dev/hugepages
ln -s /run /var/run
mount -t tmpfs shm /dev/shm
mount -t hugetlbfs hugepages /dev/hugepages
mount -t bpf bpf /sys/fs/bpf
ln -sf /proc/self/fd /dev/fd
ip link set lo up
exec 3<>/dev/vport0p1
echo ready >&3
while read -r size word <&3; do
    echo ready >&3
    head -c "$size" <&3 >/run/script
    dash /run/script </dev/null >/run/output 2>&1
    code=$?
    cat /run/output >&3
    printf '\n%s %s\n' "$word" "$code" >&3
done
poweroff -f
