/* What nvidia-smi asks of NVML, and no card of ours can tell. In a file of its own, without nvml.h:
 * the answer is the same whatever the arguments are. */
void nvml_count(void);

#define ABSENT(name)                                                                               \
    __attribute__((visibility("default"))) int name(void);                                         \
    int name(void)                                                                                 \
    {                                                                                              \
        nvml_count();                                                                              \
        return 3; /* NVML_ERROR_NOT_SUPPORTED */                                                   \
    }

ABSENT(nvmlDeviceGetAccountingBufferSize)
ABSENT(nvmlDeviceGetAccountingMode)
ABSENT(nvmlDeviceGetAccountingPids)
ABSENT(nvmlDeviceGetAccountingStats)
ABSENT(nvmlDeviceGetApplicationsClock)
ABSENT(nvmlDeviceGetAttributes_v2)
ABSENT(nvmlDeviceGetAutoBoostedClocksEnabled)
ABSENT(nvmlDeviceGetBoardId)
ABSENT(nvmlDeviceGetBoardPartNumber)
ABSENT(nvmlDeviceGetBridgeChipInfo)
ABSENT(nvmlDeviceGetClock)
ABSENT(nvmlDeviceGetConfComputeMemSizeInfo)
ABSENT(nvmlDeviceGetConfComputeProtectedMemoryUsage)
ABSENT(nvmlDeviceGetCpuAffinity)
ABSENT(nvmlDeviceGetCurrentClocksThrottleReasons)
ABSENT(nvmlDeviceGetDefaultApplicationsClock)
ABSENT(nvmlDeviceGetDriverModel)
ABSENT(nvmlDeviceGetEncoderSessions)
ABSENT(nvmlDeviceGetEncoderStats)
ABSENT(nvmlDeviceGetFBCSessions)
ABSENT(nvmlDeviceGetFBCStats)
ABSENT(nvmlDeviceGetGpcClkVfOffset)
ABSENT(nvmlDeviceGetGpuFabricInfo)
ABSENT(nvmlDeviceGetGpuOperationMode)
ABSENT(nvmlDeviceGetGridLicensableFeatures_v4)
ABSENT(nvmlDeviceGetGspFirmwareMode)
ABSENT(nvmlDeviceGetGspFirmwareVersion)
ABSENT(nvmlDeviceGetInforomImageVersion)
ABSENT(nvmlDeviceGetInforomVersion)
ABSENT(nvmlDeviceGetJpgUtilization)
ABSENT(nvmlDeviceGetLastBBXFlushTime)
ABSENT(nvmlDeviceGetMemoryAffinity)
ABSENT(nvmlDeviceGetMemoryErrorCounter)
ABSENT(nvmlDeviceGetModuleId)
ABSENT(nvmlDeviceGetMultiGpuBoard)
ABSENT(nvmlDeviceGetNvLinkVersion)
ABSENT(nvmlDeviceGetOfaUtilization)
ABSENT(nvmlDeviceGetPcieReplayCounter)
ABSENT(nvmlDeviceGetRemappedRows)
ABSENT(nvmlDeviceGetRetiredPages)
ABSENT(nvmlDeviceGetRetiredPagesPendingStatus)
ABSENT(nvmlDeviceGetRetiredPages_v2)
ABSENT(nvmlDeviceGetRowRemapperHistogram)
ABSENT(nvmlDeviceGetSamples)
ABSENT(nvmlDeviceGetSramEccErrorStatus)
ABSENT(nvmlDeviceGetSupportedClocksThrottleReasons)
ABSENT(nvmlDeviceGetSupportedEventTypes)
ABSENT(nvmlDeviceGetSupportedGraphicsClocks)
ABSENT(nvmlDeviceGetSupportedMemoryClocks)
ABSENT(nvmlDeviceGetTemperatureThreshold)
ABSENT(nvmlDeviceGetViolationStatus)
ABSENT(nvmlDeviceGetVirtualizationMode)
ABSENT(nvmlDeviceValidateInforom)
ABSENT(nvmlGetExcludedDeviceCount)
ABSENT(nvmlGetExcludedDeviceInfoByIndex)
ABSENT(nvmlSystemGetConfComputeCapabilities)
ABSENT(nvmlSystemGetConfComputeState)
ABSENT(nvmlSystemGetHicVersion)
ABSENT(nvmlSystemGetNvlinkBwMode)
ABSENT(nvmlUnitGetCount)

/* nvidia-smi will not start without this table of functions that nobody has described. Its first
 * word is its size in bytes, and nvidia-smi looks at no function beyond that: here there is none. */
__attribute__((visibility("default"))) int nvmlInternalGetExportTable(const void **table,
                                                                      const void *id);
int nvmlInternalGetExportTable(const void **table, const void *id)
{
    static const unsigned long long empty[1] = {sizeof empty};
    (void)id;
    *table = empty;
    return 0;
}
