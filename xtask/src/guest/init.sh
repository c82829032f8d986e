#!/busybox sh
# Runs from the initramfs: mounts the root folder and starts the agent there. On failure there is nothing to go on with.
set -e
trap '/busybox poweroff -f' EXIT
/busybox mount -t devtmpfs dev /dev
for module in netfs 9pnet 9pnet_virtio 9p; do
    /busybox insmod /$module.ko.xz
done
# The folder does not change while guests run: what was read is kept.
/busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 root /root
/busybox mount -t proc proc /root/proc
/busybox mount -t sysfs sys /root/sys
/busybox mount -t devtmpfs dev /root/dev
for folder in tmp run mnt var; do
    /busybox mount -t tmpfs tmpfs /root/$folder
done
exec /busybox switch_root /root /usr/lib/agent
