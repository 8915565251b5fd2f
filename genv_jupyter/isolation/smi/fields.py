"""The fields of ``nvidia-smi -q``: how deep, what they are called as text and as XML, their value.

One line each: label, XML element, key in ``VALUES``. A line without a key has no value that is
read here (N/A), or is the head of those below it. ``-`` is no label, or no element.
"""

from __future__ import annotations

from typing import NamedTuple

from genv_jupyter.isolation.smi import values as v


class Field(NamedTuple):
    """A line of the tree, with those below it."""

    label: str | None
    tag: str | None
    value: v.Value | None
    below: list[Field]


_TREE = """\
Product Name | product_name | name
Product Brand | product_brand | brand
Product Architecture | product_architecture | architecture
Display Mode | display_mode | display_mode
Display Active | display_active | display_active
Persistence Mode | persistence_mode | persistence
Addressing Mode | addressing_mode
MIG Mode | mig_mode
  Current | current_mig | mig
  Pending | pending_mig | mig_pending
- | mig_devices | none
Accounting Mode | accounting_mode
Accounting Mode Buffer Size | accounting_mode_buffer_size
Driver Model | driver_model
  Current | current_dm
  Pending | pending_dm
Serial Number | serial | serial
GPU UUID | uuid | uuid
Minor Number | minor_number | minor
VBIOS Version | vbios_version | vbios
MultiGPU Board | multigpu_board
Board ID | board_id
Board Part Number | board_part_number
GPU Part Number | gpu_part_number
FRU Part Number | gpu_fru_part_number
Module ID | gpu_module_id
Inforom Version | inforom_version
  Image Version | img_version
  OEM Object | oem_object
  ECC Object | ecc_object
  Power Management Object | pwr_object
Inforom BBX Object Flush | inforom_bbx_flush
  Latest Timestamp | latest_timestamp
  Latest Duration | latest_duration
GPU Operation Mode | gpu_operation_mode
  Current | current_gom
  Pending | pending_gom
GSP Firmware Version | gsp_firmware_version
GPU Virtualization Mode | gpu_virtualization_mode
  Virtualization Mode | virtualization_mode
  Host VGPU Mode | host_vgpu_mode
GPU Reset Status | gpu_reset_status
  Reset Required | reset_required
  Drain and Reset Recommended | drain_and_reset_recommended
IBMNPU | ibmnpu
  Relaxed Ordering Mode | relaxed_ordering_mode
PCI | pci
  Bus | pci_bus | bus
  Device | pci_device | bus_device
  Domain | pci_domain | domain
  Device Id | pci_device_id | device_id
  Bus Id | pci_bus_id | bus_id
  Sub System Id | pci_sub_system_id | subsystem_id
  GPU Link Info | pci_gpu_link_info
    PCIe Generation | pcie_gen
      Max | max_link_gen | generation_max
      Current | current_link_gen | generation
      Device Current | device_current_link_gen | generation
      Device Max | max_device_link_gen | generation_device_max
      Host Max | max_host_link_gen
    Link Width | link_widths
      Max | max_link_width | width_max
      Current | current_link_width | width
  Bridge Chip | pci_bridge_chip
    Type | bridge_chip_type
    Firmware | bridge_chip_fw
  Replays Since Reset | replay_counter
  Replay Number Rollovers | replay_rollover_counter
  Tx Throughput | tx_util
  Rx Throughput | rx_util
  Atomic Caps Inbound | atomic_caps_inbound
  Atomic Caps Outbound | atomic_caps_outbound
Fan Speed | fan_speed | fan
Performance State | performance_state | pstate
Clocks Event Reasons | clocks_event_reasons
Sparse Operation Mode | sparse_operation_mode
FB Memory Usage | fb_memory_usage
  Total | total | total
  Reserved | reserved | reserved
  Used | used | used
  Free | free | free
BAR1 Memory Usage | bar1_memory_usage
  Total | total | bar1_total
  Used | used | bar1_used
  Free | free | bar1_free
Conf Compute Protected Memory Usage | cc_protected_memory_usage
  Total | total
  Used | used
  Free | free
Compute Mode | compute_mode | compute_mode
Utilization | utilization
  Gpu | gpu_util | utilization
  Memory | memory_util | memory_utilization
  Encoder | encoder_util | encoder
  Decoder | decoder_util | decoder
  JPEG | jpeg_util
  OFA | ofa_util
Encoder Stats | encoder_stats
  Active Sessions | session_count
  Average FPS | average_fps
  Average Latency | average_latency
FBC Stats | fbc_stats
  Active Sessions | session_count
  Average FPS | average_fps
  Average Latency | average_latency
ECC Mode | ecc_mode
  Current | current_ecc | ecc
  Pending | pending_ecc | ecc_pending
ECC Errors | ecc_errors
  Volatile | volatile
    SRAM Correctable | sram_correctable
    SRAM Uncorrectable Parity | sram_uncorrectable_parity
    SRAM Uncorrectable SEC-DED | sram_uncorrectable_secded
    DRAM Correctable | dram_correctable
    DRAM Uncorrectable | dram_uncorrectable
  Aggregate | aggregate
    SRAM Correctable | sram_correctable
    SRAM Uncorrectable Parity | sram_uncorrectable_parity
    SRAM Uncorrectable SEC-DED | sram_uncorrectable_secded
    DRAM Correctable | dram_correctable
    DRAM Uncorrectable | dram_uncorrectable
    SRAM Threshold Exceeded | sram_threshold_exceeded
  Aggregate Uncorrectable SRAM Sources | aggregate_uncorrectable_sram_sources
    SRAM L2 | sram_l2
    SRAM SM | sram_sm
    SRAM Microcontroller | sram_microcontroller
    SRAM PCIE | sram_pcie
    SRAM Other | sram_other
Retired Pages | retired_pages
  - | multiple_single_bit_retirement
    - | retired_count
    - | retired_pagelist
  - | double_bit_retirement
    - | retired_count
    - | retired_pagelist
  Single Bit ECC | -
  Double Bit ECC | -
  Pending Page Blacklist | pending_blacklist
  - | pending_retirement
Remapped Rows | remapped_rows
Temperature | temperature
  GPU Current Temp | gpu_temp | temperature
  GPU T.Limit Temp | gpu_temp_tlimit
  GPU Shutdown T.Limit Temp | gpu_temp_max_tlimit_threshold
  GPU Slowdown T.Limit Temp | gpu_temp_slow_tlimit_threshold
  GPU Max Operating T.Limit Temp | gpu_temp_max_gpu_tlimit_threshold
  GPU Target Temperature | gpu_target_temperature
  Memory Current Temp | memory_temp
  Memory Max Operating T.Limit Temp | gpu_temp_max_mem_tlimit_threshold
- | supported_gpu_target_temp
  - | gpu_target_temp_min
  - | gpu_target_temp_max
GPU Power Readings | gpu_power_readings
  - | power_state | pstate
  Power Draw | power_draw | power_draw
  Current Power Limit | current_power_limit | power_limit
  Requested Power Limit | requested_power_limit | power_requested
  Default Power Limit | default_power_limit | power_default
  Min Power Limit | min_power_limit | power_min
  Max Power Limit | max_power_limit | power_max
Module Power Readings | module_power_readings
  - | power_state | pstate
  Power Draw | power_draw
  Current Power Limit | current_power_limit
  Requested Power Limit | requested_power_limit
  Default Power Limit | default_power_limit
  Min Power Limit | min_power_limit
  Max Power Limit | max_power_limit
Clocks | clocks
  Graphics | graphics_clock | graphics_clock
  SM | sm_clock | sm_clock
  Memory | mem_clock | memory_clock
  Video | video_clock | video_clock
Applications Clocks | applications_clocks
  Graphics | graphics_clock
  Memory | mem_clock
Default Applications Clocks | default_applications_clocks
  Graphics | graphics_clock
  Memory | mem_clock
Deferred Clocks | deferred_clocks
  Memory | mem_clock
Max Clocks | max_clocks
  Graphics | graphics_clock | graphics_clock_max
  SM | sm_clock | sm_clock_max
  Memory | mem_clock | memory_clock_max
  Video | video_clock | video_clock_max
Max Customer Boost Clocks | max_customer_boost_clocks
  Graphics | graphics_clock
Clock Policy | clock_policy
  Auto Boost | auto_boost
  Auto Boost Default | auto_boost_default
Voltage | voltage
  Graphics | graphics_volt
Fabric | fabric
  State | state
  Status | status
- | supported_clocks
"""

VALUES: dict[str, v.Value] = {
    **{"name": v.name, "brand": v.brand, "architecture": v.architecture, "uuid": v.uuid},
    **{name: v.switch(name) for name in ("display_mode", "display_active", "persistence")},
    **{name: v.switch(name) for name in ("mig", "mig_pending", "ecc", "ecc_pending")},
    **{name: v.number(name) for name in ("serial", "minor", "vbios")},
    "none": lambda card: "None",
    "bus": v.bus(1, 2),
    "bus_device": v.bus(2, 2),
    "domain": v.bus(0, 4),
    "device_id": v.hexadecimal("pci_device_id", 8),
    "subsystem_id": v.hexadecimal("pci_subsystem_id", 8),
    "bus_id": v.number("pci_bus_id"),
    "generation": v.number("pcie_generation"),
    "generation_max": v.number("pcie_generation_max"),
    "generation_device_max": v.number("pcie_generation_device_max"),
    "width": v.lanes("pcie_width"),
    "width_max": v.lanes("pcie_width_max"),
    "fan": v.unit(v.number("fan"), "%"),
    "pstate": v.pstate,
    **{name: v.unit(v.memory(name), "MiB") for name in ("total", "used", "free")},
    "reserved": v.unit(v.nothing_reserved, "MiB"),
    **{f"bar1_{part}": v.unit(v.mib(f"bar1_{part}"), "MiB") for part in ("total", "used", "free")},
    "compute_mode": v.compute_mode,
    "utilization": v.unit(v.utilization, "%"),
    **{name: v.unit(v.number(name), "%") for name in ("memory_utilization", "encoder", "decoder")},
    "temperature": v.unit(v.number("temperature"), "C"),
    **{
        f"power_{part}": v.unit(v.watts(f"power_{part}"), "W")
        for part in ("draw", "limit", "requested", "default", "min", "max")
    },
    **{
        f"{kind}_clock{most}": v.unit(v.number(f"{kind}_clock{most}"), "MHz")
        for kind in ("graphics", "sm", "memory", "video")
        for most in ("", "_max")
    },
}


def _parse(text: str) -> list[Field]:
    top: list[Field] = []
    levels = [top]
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 2
        label, tag, *key = (part.strip() for part in line.split("|"))
        value = VALUES[key[0]] if key else None
        made = Field(None if label == "-" else label, None if tag == "-" else tag, value, [])
        del levels[depth + 1 :]
        levels[depth].append(made)
        levels.append(made.below)
    return top


FIELDS = _parse(_TREE)
