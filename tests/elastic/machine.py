"""Writes a machine into a folder, as the kernel describes one in sysfs."""

from supervise._process.launch import numa

cpus_of_ranks = numa.cpus_of_ranks


def use(monkeypatch, root):
    """Have ranks be bound to CPUs by what this sysfs says, until the end of the test."""
    monkeypatch.setattr(numa, "SYSFS", str(root))


def write(root, *, nodes, gpus, sockets=None, siblings=None, caches=None, vendor="0x10de"):
    """Make a sysfs.

    Args:
        root: The folder.
        nodes: NUMA node to its CPUs, as the kernel writes them ("0-3,8").
        gpus: PCI address to NUMA node.
        sockets: CPU to socket.
        siblings: CPU to the CPUs of its core; missing is itself.
        caches: CPU to the CPUs that share its last cache; missing is itself.
        vendor: Of the GPUs.
    """

    def put(path, text):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    put("devices/system/node/online", f"0-{len(nodes) - 1}")
    put("devices/system/node/possible", f"0-{len(nodes) - 1}")
    cpus = set()
    for node, cpulist in nodes.items():
        put(f"devices/system/node/node{node}/cpulist", cpulist)
        for item in cpulist.split(","):
            first, _, last = item.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    for cpu in cpus:
        folder = f"devices/system/cpu/cpu{cpu}"
        put(f"{folder}/topology/physical_package_id", (sockets or {}).get(cpu, 0))
        put(f"{folder}/topology/thread_siblings_list", (siblings or {}).get(cpu, cpu))
        for index, (kind, level, shared) in enumerate(
            [("Instruction", 9, cpu), ("Data", 1, cpu), ("Unified", 3, (caches or {}).get(cpu, cpu))]
        ):
            put(f"{folder}/cache/index{index}/type", kind)
            put(f"{folder}/cache/index{index}/level", level)
            put(f"{folder}/cache/index{index}/shared_cpu_list", shared)
    put("devices/system/cpu/cpu0/cache/uevent", "")
    for address, node in gpus.items():
        put(f"bus/pci/devices/{address}/class", "0x030200")
        put(f"bus/pci/devices/{address}/vendor", vendor)
        put(f"bus/pci/devices/{address}/numa_node", node)
    for address, kind, vendor_id in [
        ("0000:00:01.0", "0x030000", "0x1a03"),  # the server's own graphics
        ("0000:00:02.0", "0x020000", "0x10de"),  # a network card of NVIDIA's
    ]:
        put(f"bus/pci/devices/{address}/class", kind)
        put(f"bus/pci/devices/{address}/vendor", vendor_id)
        put(f"bus/pci/devices/{address}/numa_node", 0)
