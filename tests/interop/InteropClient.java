import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.OpenBuilder;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/**
 * Apache's own client, told what to do by words. Each result is a line that begins with "RESULT ".
 *
 * <p>URI v2|v3 write E Qw Qa DIGEST PASSWORD COUNT close|leave
 *
 * <p>URI v2|v3 read LEDGER DIGEST PASSWORD recover|plain
 *
 * <p>URI v3 operations E Qw Qa DIGEST PASSWORD: what v2 has no frames for
 */
public final class InteropClient {
    private InteropClient() {}

    public static void main(String[] words) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(words[0]);
        // v3 is what it speaks unless it is told otherwise: all else is left as it comes.
        if (words[1].equals("v2")) {
            conf.setUseV2WireProtocol(true);
            conf.setThrottleValue(0);
        }
        String what = words[2];
        if (what.equals("operations")) {
            conf.setExplictLacInterval(3000);  // long after the poll below has been seen to wait
        }
        String[] rest = Arrays.copyOfRange(words, 2, words.length);
        try (BookKeeper client = BookKeeper.newBuilder(conf).build()) {
            switch (what) {
                case "write" -> write(client, rest);
                case "read" -> read(client, rest);
                default -> operations(client, rest);
            }
        }
    }

    private static byte[] payload(long entry) {
        return ("entry " + entry + " ").repeat(10).getBytes(StandardCharsets.UTF_8);
    }

    private static CreateBuilder created(BookKeeper client, String[] words) {
        return client.newCreateLedgerOp()
                .withEnsembleSize(Integer.parseInt(words[1]))
                .withWriteQuorumSize(Integer.parseInt(words[2]))
                .withAckQuorumSize(Integer.parseInt(words[3]))
                .withDigestType(DigestType.valueOf(words[4]))
                .withPassword(words[5].getBytes(StandardCharsets.UTF_8))
                .withCustomMetadata(Map.of("maker", "apache".getBytes(StandardCharsets.UTF_8)));
    }

    private static OpenBuilder opened(BookKeeper client, String[] words) {
        return client.newOpenLedgerOp()
                .withDigestType(DigestType.valueOf(words[words.length - 2]))
                .withPassword(words[words.length - 1].getBytes(StandardCharsets.UTF_8));
    }

    private static void write(BookKeeper client, String[] words) throws Exception {
        int count = Integer.parseInt(words[6]);
        WriteHandle handle = created(client, words).execute().get();
        for (int entry = 0; entry < count; entry++) {
            handle.append(payload(entry));
        }
        System.out.printf(
                "RESULT ledger=%d last=%d length=%d%n",
                handle.getId(), handle.getLastAddConfirmed(), handle.getLength());
        if (words[7].equals("close")) {
            handle.close();
        } else {
            // As a writer that died: its ledger stays open.
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }

    private static void read(BookKeeper client, String[] words) throws Exception {
        String[] front = Arrays.copyOf(words, 4);
        try (ReadHandle handle =
                opened(client, front)
                        .withLedgerId(Long.parseLong(words[1]))
                        .withRecovery(words[4].equals("recover"))
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

    private static void operations(BookKeeper client, String[] words) throws Exception {
        StringBuilder result = new StringBuilder("RESULT");
        org.apache.bookkeeper.client.BookKeeper inner =
                (org.apache.bookkeeper.client.BookKeeper) client;
        try (WriteHandle writer = created(client, words).execute().get();
                ReadHandle reader =
                        opened(client, words).withLedgerId(writer.getId()).execute().get()) {
            long ledger = writer.getId();
            writer.append(payload(0));
            // A long poll that is parked when the next entry says that this one is confirmed.
            CompletableFuture<LastConfirmedAndEntry> poll =
                    reader.readLastAddConfirmedAndEntryAsync(0, 30_000, false);
            Thread.sleep(200);
            boolean parked = !poll.isDone();
            writer.append(payload(1));
            try (LastConfirmedAndEntry found = poll.get()) {
                result.append(String.format(" parked=%b confirmed_first=%b polled=%d", parked,
                        found.getLastAddConfirmed() >= 0, found.getEntry().getEntryId()));
            }
            writer.append(payload(2));
            // One that nobody answers in its time.
            try (LastConfirmedAndEntry none =
                    reader.readLastAddConfirmedAndEntryAsync(9, 300, false).get()) {
                result.append(String.format(" timed_out=%b", !none.hasEntry()));
            }
            // The writer is idle: its LAC comes alone.
            long lac = -1;
            for (int tries = 0; tries < 200 && lac < 2; tries++) {
                Thread.sleep(50);
                lac = ((LedgerHandle) reader).readExplicitLastConfirmed();
            }
            result.append(String.format(" explicit=%d confirmed=%d", lac,
                    reader.readLastAddConfirmed()));
            BookKeeperAdmin admin = new BookKeeperAdmin(inner, new ClientConfiguration());
            TreeSet<String> held = new TreeSet<>();
            for (BookieId bookie : admin.getAvailableBookies()) {
                AvailabilityOfEntriesOfLedger map =
                        admin.asyncGetListOfEntriesOfLedger(bookie, ledger).get();
                StringBuilder bits = new StringBuilder();
                for (int entry = 0; entry < 5; entry++) {
                    bits.append(map.isEntryAvailable(entry) ? '1' : '0');
                }
                held.add(bits.toString());
            }
            result.append(" held=").append(String.join(",", held));
            boolean known = true;
            for (BookieInfo info : inner.getBookieInfo().values()) {
                known &= info.getFreeDiskSpace() > 0
                        && info.getFreeDiskSpace() <= info.getTotalDiskSpace();
            }
            result.append(" bookies=").append(inner.getBookieInfo().size()).append(" space=")
                    .append(known);
        }
        try (WriteHandle writer =
                created(client, words).withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get()) {
            for (int entry = 0; entry < 10; entry++) {
                writer.append(payload(entry));
            }
            long before = writer.getLastAddConfirmed();
            writer.force().get();
            result.append(String.format(" deferred=%d forced=%d", before,
                    writer.getLastAddConfirmed()));
        }
        System.out.println(result);
    }
}
