import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's own client, which writes ledgers one after another until its input ends, while others
 * exchange the bookies; then it reads back all that was acknowledged.
 *
 * <p>URI v2|v3 E Qw Qa ENTRIES_OF_A_LEDGER
 *
 * <p>Says "LEDGER id entries" for each ledger that it closed, "FAILED what" for each failure, and at
 * the end one "RESULT" line.
 */
public final class LongWriter {
    private static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.UTF_8);
    private static final int AT_ONCE = 5;

    private record Closed(long ledger, long last) {}

    private LongWriter() {}

    public static void main(String[] words) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(words[0]);
        if (words[1].equals("v2")) {
            conf.setUseV2WireProtocol(true);
            conf.setThrottleValue(0);
        }
        List<Closed> closed = new ArrayList<>();
        long written = 0;
        long errors = 0;
        long longestMs = 0;
        try (BookKeeper client = BookKeeper.newBuilder(conf).build()) {
            while (System.in.available() == 0) {
                try (WriteHandle writer = made(client, words)) {
                    long count = Long.parseLong(words[5]);
                    for (long entry = 0; entry < count && System.in.available() == 0; ) {
                        long since = System.nanoTime();
                        List<CompletableFuture<Long>> adds = new ArrayList<>();
                        for (int one = 0; one < AT_ONCE; one++, entry++) {
                            adds.add(writer.appendAsync(payload(entry)));
                        }
                        for (CompletableFuture<Long> add : adds) {
                            add.get();
                            written++;
                        }
                        longestMs = Math.max(longestMs, (System.nanoTime() - since) / 1_000_000);
                        Thread.sleep(25);
                    }
                    writer.close();
                    closed.add(new Closed(writer.getId(), writer.getLastAddConfirmed()));
                    System.out.printf("LEDGER %d %d%n", writer.getId(),
                            writer.getLastAddConfirmed() + 1);
                } catch (ExecutionException | org.apache.bookkeeper.client.api.BKException error) {
                    errors++;
                    System.out.println("FAILED " + error);
                }
            }
            long read = 0;
            long wrong = 0;
            for (Closed one : closed) {
                try (ReadHandle reader = client.newOpenLedgerOp().withLedgerId(one.ledger())
                        .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get()) {
                    wrong += reader.getLastAddConfirmed() == one.last() ? 0 : 1;
                    for (long first = 0; first <= one.last(); first += 100) {
                        long last = Math.min(one.last(), first + 99);
                        try (LedgerEntries entries = reader.read(first, last)) {
                            for (LedgerEntry entry : entries) {
                                byte[] wanted = payload(entry.getEntryId());
                                wrong += java.util.Arrays.equals(wanted, entry.getEntryBytes())
                                        ? 0 : 1;
                                read++;
                            }
                        }
                    }
                }
            }
            System.out.printf("RESULT written=%d errors=%d longest_ms=%d read=%d wrong=%d%n",
                    written, errors, longestMs, read, wrong);
        }
    }

    private static WriteHandle made(BookKeeper client, String[] words) throws Exception {
        return client.newCreateLedgerOp()
                .withEnsembleSize(Integer.parseInt(words[2]))
                .withWriteQuorumSize(Integer.parseInt(words[3]))
                .withAckQuorumSize(Integer.parseInt(words[4]))
                .withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD)
                .execute()
                .get();
    }

    private static byte[] payload(long entry) {
        return ("entry " + entry + " ").repeat(10).getBytes(StandardCharsets.UTF_8);
    }
}
