import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Map;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's own client, told what to do by words. Each result is a line that begins with "RESULT ".
 *
 * <p>URI write E Qw Qa DIGEST PASSWORD COUNT close|leave
 *
 * <p>URI read LEDGER DIGEST PASSWORD recover|plain
 */
public final class InteropClient {
    private InteropClient() {}

    public static void main(String[] words) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(words[0]);
        conf.setUseV2WireProtocol(true);
        conf.setThrottleValue(0);
        try (BookKeeper client = BookKeeper.newBuilder(conf).build()) {
            if (words[1].equals("write")) {
                write(client, words);
            } else {
                read(client, words);
            }
        }
    }

    private static byte[] payload(long entry) {
        return ("entry " + entry + " ").repeat(10).getBytes(StandardCharsets.UTF_8);
    }

    private static void write(BookKeeper client, String[] words) throws Exception {
        int count = Integer.parseInt(words[7]);
        WriteHandle handle =
                client.newCreateLedgerOp()
                        .withEnsembleSize(Integer.parseInt(words[2]))
                        .withWriteQuorumSize(Integer.parseInt(words[3]))
                        .withAckQuorumSize(Integer.parseInt(words[4]))
                        .withDigestType(DigestType.valueOf(words[5]))
                        .withPassword(words[6].getBytes(StandardCharsets.UTF_8))
                        .withCustomMetadata(Map.of("maker", "apache".getBytes(StandardCharsets.UTF_8)))
                        .execute()
                        .get();
        for (int entry = 0; entry < count; entry++) {
            handle.append(payload(entry));
        }
        System.out.printf(
                "RESULT ledger=%d last=%d length=%d%n",
                handle.getId(), handle.getLastAddConfirmed(), handle.getLength());
        if (words[8].equals("close")) {
            handle.close();
        } else {
            // As a writer that died: its ledger stays open.
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }

    private static void read(BookKeeper client, String[] words) throws Exception {
        try (ReadHandle handle =
                client.newOpenLedgerOp()
                        .withLedgerId(Long.parseLong(words[2]))
                        .withDigestType(DigestType.valueOf(words[3]))
                        .withPassword(words[4].getBytes(StandardCharsets.UTF_8))
                        .withRecovery(words[5].equals("recover"))
                        .execute()
                        .get()) {
            long last = handle.getLastAddConfirmed();
            MessageDigest content = MessageDigest.getInstance("SHA-256");
            if (last >= 0) {
                try (LedgerEntries entries = handle.read(0, last)) {
                    for (LedgerEntry entry : entries) {
                        content.update(entry.getEntryBytes());
                    }
                }
            }
            System.out.printf(
                    "RESULT last=%d length=%d closed=%b sha256=%s%n",
                    last,
                    handle.getLength(),
                    handle.isClosed(),
                    HexFormat.of().formatHex(content.digest()));
        }
    }
}
